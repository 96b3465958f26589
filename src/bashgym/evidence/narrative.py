"""A verification in plain words: the claim, what stands behind it, the gaps, and the command that mends each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bashgym.evidence.card import CLAIMS, PATH_FIELDS
from bashgym.evidence.explain import NEXT
from bashgym.evidence.findings import Gate
from bashgym.evidence.manifests import SCHEMAS
from bashgym.methods.spec import EvidenceKind

SCHEMA = "bashgym.evidence_explanation.v1"
_PAIRED = "bashgym eval run --model {run} --baseline {base}"
_HELDOUT = "bashgym eval heldout --data-file REQUEST"
_COMPARED = "bashgym eval holdout-comparison --data-file REQUEST"
_RETRIEVAL = (
    "bashgym eval retrieval --run-id {run} --queries QUERIES --qrels JUDGEMENTS --corpus CORPUS --run RANKED --baseline RANKED "
    "--training-pairs PAIRS --budget-ms MS --output REPORT"
)
_CASCADE = "give every stage a card that holds: bashgym training runcard validate STAGE_CARD --promotion"
MAKERS: dict[str, str] = {
    EvidenceKind.METRICS: "",
    EvidenceKind.RELEASE_EVIDENCE: f"{_PAIRED}; bashgym evidence release --run {{run}} --eval-report REPORT",
    EvidenceKind.HELDOUT_BEHAVIOUR: _PAIRED,
    EvidenceKind.NO_REGRESSION: _PAIRED,
    EvidenceKind.FORMAT_VALIDITY: _PAIRED,
    EvidenceKind.CANARIES: "bashgym eval canaries --run {run}",
    EvidenceKind.HOLDOUT_GATE: "bashgym eval holdout-gate --data-file REQUEST --json",
    EvidenceKind.ENVIRONMENT_PASSK: _COMPARED,
    EvidenceKind.PASSK_BEFORE_AFTER: _COMPARED,
    EvidenceKind.CORRELATED_PASSK: _COMPARED,
    EvidenceKind.SAFETY_COMPARISON: _COMPARED,
    EvidenceKind.SELECTED_VS_RANDOM: _COMPARED,
    EvidenceKind.HELDOUT_PREFERENCE: _HELDOUT,
    EvidenceKind.HELDOUT_RECOVERY: _HELDOUT,
    EvidenceKind.BASE_AND_TEACHER_COMPARISON: "bashgym eval run --model {run} --baseline TEACHER",
    EvidenceKind.PREFERENCE_PAIRS: "bashgym training dpo-pairs validate PAIRS --strict",
    EvidenceKind.SESSION_RECORDS: "bashgym training session-records validate RECORDS",
    EvidenceKind.MASKED_TOKEN_METRICS: "",
    EvidenceKind.ZERO_STD_DIAGNOSTICS: "train again with a version that reports reward_std and frac_reward_zero_std",
    EvidenceKind.REPLAY: "bashgym replay summarize REPLAY",
    EvidenceKind.REPLAY_ENRICHMENT: "bashgym eval replay-score --replay REPLAY --model {base} --output ENRICHED",
    EvidenceKind.SMOKE_BUNDLE: "bashgym training smoke-bundle --replay REPLAY --output-dir DIR --base-model {base}",
    EvidenceKind.WORLD_MODEL_QUALITY: "",
    EvidenceKind.REWARD_EXAMPLES: "bashgym training reward-examples validate EXAMPLES --strict",
    EvidenceKind.REWARD_EVAL: "bashgym training reward-eval evaluate PREDICTIONS --run-id {run} --output REPORT",
    EvidenceKind.STAGE_RUN_CARDS: _CASCADE,
    EvidenceKind.STAGE_GATES: _CASCADE,
    EvidenceKind.FROZEN_SPLIT: _RETRIEVAL,
    EvidenceKind.RETRIEVAL_METRICS: _RETRIEVAL,
    EvidenceKind.HARD_SLICES: _RETRIEVAL,
    EvidenceKind.LATENCY_FOOTPRINT: _RETRIEVAL,
    EvidenceKind.CONTAMINATION_CONTROL: _RETRIEVAL,
}
"""Kind -> what makes its document; every kind of the registry has one."""


def explain(found: Mapping[str, Any]) -> dict[str, Any]:
    """{schema_version, ok, run_id, claim, lines, gaps[{code, message, mend}]} of a verification."""
    failures = [f for f in found["findings"] if f["level"] == "fail"]
    gaps = [{"code": f["code"], "message": f["message"], "mend": _mend(f, found)} for f in failures]
    gaps += [
        {"code": "bundle", "message": f"{p['file']}: {p['problem']}", "mend": "make the bundle again"}
        for p in found["problems"]
    ]
    claim = CLAIMS.get(found["claim_tier"], found["claim_tier"])
    lines = [
        f"Run {found['run_id']}: the card says {found['decision']!r} at tier {found['claim_tier']}: {claim}.",
        "As a promotion it holds." if found["ok"] else f"As a promotion it does not hold: {len(gaps)} gaps.",
    ]
    behind = [f"{kind} ({one['path']})" for kind, one in found["artifact_status"].items() if one["accepted"]]
    lines.append(f"Behind it stands: {', '.join(behind) or 'nothing that holds'}.")
    for gap in gaps:
        lines.append(f"- {gap['message']} [{gap['code']}]")
        if gap["mend"]:
            lines.append(f"    mend: {gap['mend']}")
    lines += [f"Not recomputed: {line}" for line in found["not_recomputed"]]
    notes = [f["message"] for f in found["findings"] if f["level"] == "warn"]
    lines += [f"Note: {note}" for note in notes if note not in found["not_recomputed"]]
    return {
        "schema_version": SCHEMA,
        "ok": found["ok"],
        "run_id": found["run_id"],
        "claim": claim,
        "gaps": gaps,
        "lines": lines,
    }


def mend(kind: str, run_id: str, base: str) -> str:
    """The commands that make the evidence of a kind and bind it to the card."""
    field = PATH_FIELDS.get(kind, "")
    option = f"--{field.removesuffix('_path').replace('_', '-')} FILE" if field else f"--evidence {kind}=FILE"
    made = MAKERS[kind].replace("{run}", run_id).replace("{base}", base or "BASE")
    return "; ".join(filter(None, (made, f"bashgym training runcard attach-evidence CARD {option}")))


def _mend(finding: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The mend of a kind that is missing or does not hold; else what the gate of the finding advises."""
    code = str(finding["code"])
    if code in [f"claim_tier_{kind}_missing" for kind in SCHEMAS]:
        made = f"bashgym evidence manifests --run {found['run_id']} --heldout ROWS"
        return f"{made}; bashgym training runcard attach-evidence CARD --evidence KIND=FILE"
    for kind in MAKERS:
        field = PATH_FIELDS.get(kind)
        if code in (f"missing_{kind}", f"{kind}_not_ok", f"missing_{field}", f"missing_{field}_file"):
            return mend(kind, str(found["run_id"]), str(found.get("base_model") or ""))
    return NEXT[Gate(finding["gate"])]
