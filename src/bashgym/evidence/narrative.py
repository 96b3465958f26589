"""A verification in plain words: the claim, what stands behind it, the gaps, and the command that mends each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bashgym.methods.spec import EvidenceKind

SCHEMA = "bashgym.evidence_explanation.v1"
_CLAIMS = {
    "local_smoke": "the path works on this machine; nothing is said about quality",
    "narrow_routing": "the model is better on the task family that was measured",
    "broad_public_claim": "the model is better in general, public benchmarks included",
}
_MENDS = {
    EvidenceKind.METRICS: "bashgym training runcard attach-evidence CARD --metrics data/models/{run}/metrics.jsonl",
    EvidenceKind.RELEASE_EVIDENCE: "bashgym eval run --model {run} --baseline {base}; "
    "bashgym evidence release --run {run} --eval-report FILE",
    EvidenceKind.CANARIES: "bashgym eval canaries --run {run}; attach-evidence CARD --evidence canaries=FILE",
    EvidenceKind.HOLDOUT_GATE: "bashgym eval holdout-gate --data-file REQUEST (model_id {run})",
    EvidenceKind.ENVIRONMENT_PASSK: "bashgym eval run --suite terminal --model {run} --baseline {base}",
    EvidenceKind.HELDOUT_BEHAVIOUR: "bashgym eval run --model {run} --baseline {base}",
    EvidenceKind.HELDOUT_PREFERENCE: "bashgym eval heldout --model-id {run} ..., then attach it",
    EvidenceKind.HELDOUT_RECOVERY: "bashgym eval heldout --model-id {run} ..., then attach it",
    EvidenceKind.PASSK_BEFORE_AFTER: "bashgym eval holdout-comparison --data-file REQUEST (model_id {run})",
    EvidenceKind.SAFETY_COMPARISON: "bashgym eval holdout-comparison --data-file REQUEST (model_id {run})",
    EvidenceKind.REPLAY_ENRICHMENT: "bashgym eval replay-score --replay REPLAY --model {run} --output ENRICHED",
    EvidenceKind.SMOKE_BUNDLE: "bashgym training smoke-bundle --replay REPLAY --output-dir DIR --base-model {base}",
    EvidenceKind.REWARD_EVAL: "bashgym training reward-eval evaluate PREDICTIONS --split eval --output FILE",
}


def explain(found: Mapping[str, Any]) -> dict[str, Any]:
    """{schema_version, ok, run_id, claim, lines, gaps[{code, message, mend}]} of a verification."""
    failures = [f for f in found["findings"] if f["level"] == "fail"]
    gaps = [{"code": f["code"], "message": f["message"], "mend": _mend(f, found)} for f in failures]
    gaps += [
        {"code": "bundle", "message": f"{p['file']}: {p['problem']}", "mend": "make the bundle again"}
        for p in found["problems"]
    ]
    claim = _CLAIMS.get(found["claim_tier"], found["claim_tier"])
    lines = [
        f"Run {found['run_id']}: the card says {found['decision']!r} at tier {found['claim_tier']}: {claim}.",
        "As a promotion it holds." if found["ok"] else f"As a promotion it does not hold: {len(gaps)} gaps.",
    ]
    for gap in gaps:
        lines.append(f"- {gap['message']} [{gap['code']}]")
        if gap["mend"]:
            lines.append(f"    mend: {gap['mend']}")
    lines += [f"Not recomputed: {line}" for line in found["not_recomputed"]]
    lines += [f"Note: {f['message']}" for f in found["findings"] if f["level"] == "warn"]
    return {
        "schema_version": SCHEMA,
        "ok": found["ok"],
        "run_id": found["run_id"],
        "claim": claim,
        "gaps": gaps,
        "lines": lines,
    }


def _mend(finding: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """A command for a missing kind of evidence; else what the finding itself advises."""
    for kind, command in _MENDS.items():
        if finding["code"] in (f"missing_{kind}", f"{kind}_not_ok", f"missing_{kind}_path"):
            return command.replace("{run}", str(found["run_id"])).replace(
                "{base}", str(found.get("base_model") or "BASE")
            )
    return ""
