"""Search in samples.jsonl: every rollout and every answer that a run kept. Streaming: memory is that of what is returned.

A line has step, ts, prompt, completion; `expected` for methods with a reference answer; reward, parts, status, advantage,
group, truncated and kept for methods that sample in groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from bashgym.core.errors import fail
from bashgym.store.jsonl import JsonlTail
from bashgym.store.run_dir import RunDir

_TEXTS = ("prompt", "completion", "expected")


def search(
    run: RunDir,
    *,
    grep: str | None = None,
    step: str | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    status: str | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """{run_id, scanned, matched, unreadable, samples}: the last `limit` samples that pass every filter given.

    `grep` is a substring of prompt, completion or expected answer; `step` is `N` or `A:B`, both ends included and
    either left out. A sample without a reward passes no reward filter. `invalid_field` for a step that is neither.
    """
    low, high = _steps(step)
    tail = JsonlTail(run.file("samples.jsonl"))
    kept: deque[dict[str, Any]] = deque(maxlen=limit)
    scanned = matched = 0
    for sample in _stream(tail):
        scanned += 1
        if (
            low <= _number(sample.get("step"), -1.0) <= high
            and (status is None or sample.get("status") == status)
            and _in_range(sample.get("reward"), min_reward, max_reward)
            and (not grep or any(grep in text_of(sample.get(name)) for name in _TEXTS))
        ):
            matched += 1
            kept.append(sample)
    return {
        "run_id": run.run_id,
        "scanned": scanned,
        "matched": matched,
        "unreadable": tail.skipped,
        "samples": list(kept),
    }


def text_of(value: object) -> str:
    """A prompt or an answer as one text: the contents of its messages, or itself."""
    if isinstance(value, list):
        return "\n".join(text_of(part.get("content") if isinstance(part, Mapping) else part) for part in value)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _stream(tail: JsonlTail) -> Iterator[dict[str, Any]]:
    while batch := tail.read_new(1):  # one chunk of the file at a time
        yield from batch


def _steps(text: str | None) -> tuple[float, float]:
    """The first and last step of `N` or `A:B`."""
    if text is None:
        return float("-inf"), float("inf")
    first, colon, last = text.partition(":")
    ends = (first, last) if colon else (first, first)
    if not all(end.strip().isdecimal() or (colon and not end.strip()) for end in ends) or text.strip() == ":":
        raise fail(
            "invalid_field",
            f"step is {text[:40]!r}; it is one step or a range of steps",
            hint="Examples: 20, 10:20, 10: and :20.",
            fields=["step"],
        )
    low, high = (end.strip() for end in ends)
    return float(low or "-inf"), float(high or "inf")


def _in_range(reward: object, low: float | None, high: float | None) -> bool:
    if low is None and high is None:
        return True
    value = _number(reward, float("nan"))
    return (low is None or value >= low) and (high is None or value <= high)


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default
