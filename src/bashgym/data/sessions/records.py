"""Records from one session: failed steps whose recovery is known, seen with and without a hint.

The target is the recovery, never the action that failed; a failure without recovery gives no record. The context ends
where the failed step's output does: what the agent learnt in between is not in it, and the hint is to make up for it.

Confidence is the reader's: .78 where the session says that the step failed, .68 where the reader judged by the output.
Quality is of the record, whoever read it: .4 for a recovery with exit code 0 (.3 for a flag alone), .3 for an output
that names what is wrong, .3 divided by the steps from the failure to the recovery.
"""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.data.sessions.contract import MASK_POLICY, TAG, faults
from bashgym.data.sessions.outcomes import READER, Mistake, Outcome, has_signal, outcome, read_mistake
from bashgym.data.sessions.recovery import Recovery, find_recovery, take_apart
from bashgym.data.sessions.steps import Session, Step
from bashgym.ledger.safe import REDACTED

CUE = "Next action:"
VALIDATION_SHARE = 0.1
MAX_TARGET_CHARS = 4000
"""A longer action makes no record: cut, it would be a broken one."""
_CHARS = 500
"""Of the task, the intent, and each action and output of the context."""
_STEPS = 3
_TEST_RUNNERS = frozenset(
    {*("pytest", "unittest", "tox", "nox", "jest", "vitest", "mocha", "ctest", "rspec", "phpunit")}
    | {*("npm test", "yarn test", "pnpm test", "cargo test", "go test", "make test", "make check")}
)


def split_of(session_id: str) -> str:
    """`train` or `validation`: the same for every record of a session, on every machine."""
    share = int.from_bytes(sha256(session_id.encode("utf-8", "replace")).digest()[:8]) / 2**64
    return "validation" if share < VALIDATION_SHARE else "train"


def build_records(session: Session, trace_file: str) -> tuple[list[dict[str, Any]], Counter[str], list[str]]:
    """(valid records, failed steps that gave none by reason, faults of records that would not be valid).

    The session's text is scrubbed already.
    """
    records, skipped, errors = list[dict[str, Any]](), Counter[str](), list[str]()
    for at, step in enumerate(session.steps):
        if outcome(step) is not Outcome.FAILED:
            continue
        recovery = find_recovery(session.steps, at)
        target = recovery.step.action if recovery.step else ""
        if recovery.step is None:
            skipped[recovery.reason] += 1
        elif REDACTED in target:
            skipped["secret_in_target"] += 1
        elif len(target) > MAX_TARGET_CHARS:
            skipped["target_too_long"] += 1
        elif problem := faults(record := _record(session, trace_file, at, recovery)):
            skipped["invalid_record"] += 1
            errors += [f"{trace_file}, step {step.index + 1}: {fault.message}" for fault in problem]
        else:
            records.append(record)
    return records, skipped, errors


def _record(session: Session, trace_file: str, at: int, recovery: Recovery) -> dict[str, Any]:
    failed, mended = session.steps[at], recovery.step
    assert mended is not None  # noqa: S101 - the caller has looked
    mistake, target = read_mistake(failed), mended.action
    hint = f"{mistake.hint}{_seen_nearby(session, mistake, at, mended.index)}"
    context = _context(session, at)
    span = {"start": 0, "end": len(target)}
    record = {
        "trace_id": session.trace_id,
        "session_id": session.session_id,
        "decision_id": f"{session.trace_id}:{failed.index}",
        "step_index": failed.index,
        "original_context": f"{context}\n{CUE}",
        "hinted_context": f"{context}\n{TAG} {hint}\n{CUE}",
        "hint_text": hint,
        "target_text": target,
        "target_type": _target_type(mended),
        "target_span": span,
        "loss_mask": {"policy": MASK_POLICY, "target_span": span},
        "reader_model": READER,
        "reader_confidence": 0.78 if has_signal(failed) else 0.68,
        "verifier_outcome": "failed" if has_signal(failed) else "decision_failure",
        "quality_score": _quality(failed, mended, mistake),
        "source_metadata": {
            "trace_file": trace_file,
            "split": split_of(session.session_id),
            "repo": session.repo,
            "mistake_type": mistake.kind,
            "reader_reason": recovery.reason,
            "step_tool": failed.tool,
            "failed_action": failed.action,
            "recovery_step_index": mended.index,
        },
    }
    return {"record_id": digest_json(record)[:24], **record}


def _seen_nearby(session: Session, mistake: Mistake, at: int, before: int) -> str:
    """The name most like the missing one that an output showed before the recovery, in words; empty if none is near."""
    if mistake.kind not in ("missing_path", "missing_command"):
        return ""
    seen = {
        word
        for step in session.steps[max(0, at + 1 - _STEPS) : before]
        for word in step.output[:5000].split()
        if outcome(step) is Outcome.SUCCEEDED and len(word) <= 120 and word != mistake.name
    }
    near = get_close_matches(mistake.name, sorted(seen), n=1, cutoff=0.75)
    return f" There is `{near[0]}`." if near else ""


def _context(session: Session, at: int) -> str:
    parts = [f"Task: {_clip(session.task)}"] if session.task else []
    if session.steps[at].intent:
        parts.append(f"Intent: {_clip(session.steps[at].intent)}")
    for step in session.steps[max(0, at + 1 - _STEPS) : at + 1]:
        code = f" (exit code {step.exit_code})" if step.exit_code is not None else ""
        parts += [f"Step {step.index + 1}, {step.tool}: {_clip(step.action)}", f"Output{code}: {_clip(step.output)}"]
    return "\n".join(parts)


def _clip(text: str) -> str:
    """At most `_CHARS` characters; the end counts for more than the start, for that is where errors stand."""
    text = text.strip()
    head = _CHARS // 4
    return text if len(text) <= _CHARS else f"{text[:head]} ... {text[head + 5 - _CHARS :]}"


def _quality(failed: Step, mended: Step, mistake: Mistake) -> float:
    evidence = 0.4 if mended.exit_code == 0 else 0.3
    return round(evidence + 0.3 * bool(mistake.name) + 0.3 / (mended.index - failed.index), 2)


def _target_type(step: Step) -> str:
    if step.is_edit:
        return "edit"
    if not step.is_command:
        return "tool_call"
    return "test_decision" if take_apart(step).program in _TEST_RUNNERS else "command"
