"""What stands beside the paired evaluation in a release gate: each document judged again, for the part that it speaks for.

Diagnostics are read and reported; they promote nothing and stop nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object
from bashgym.evals.environment_comparison import COMPARISON, CONTROL
from bashgym.evals.heldout_report import SCHEMA as HELDOUT
from bashgym.evals.holdout import SCHEMA as HOLDOUT
from bashgym.evals.parity import SCHEMA as PARITY
from bashgym.evals.release_sections import quality
from bashgym.evidence import recount
from bashgym.evidence.binding import artifact_digests

EXTERNAL = "bashgym.external_benchmark.v1"
SECTIONS = {
    "heldout": ("trace", HELDOUT),
    "holdout_gate": ("environment", HOLDOUT),
    "holdout_comparison": ("environment", COMPARISON),
    "spurious_reward_control": ("environment", CONTROL),
    "external_benchmarks": ("external_benchmark", EXTERNAL),
    "forgetting": ("forgetting", None),
    "parity": ("parity", PARITY),
}
"""Section -> (part of the gate, schema of its document; the reply of `benchmarks/ingest` has none)."""
DIAGNOSTICS = ("world_model_quality", "learned_reward_evidence")
PARTS = ("trace", "environment", "external_benchmark", "forgetting", "parity")


def judge(
    files: Mapping[str, Path], run_dir: Path, run_id: str, min_scores: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Section -> {part, ship, reason}; diagnostic -> {part: null, status, signals}. `invalid_field` for another name."""
    found: dict[str, dict[str, Any]] = {}
    for name, path in files.items():
        if name in DIAGNOSTICS:
            document = read_object(path)
            metrics = document.get("metrics")
            found[name] = {"part": None, **quality(metrics if isinstance(metrics, dict) else document)}
        elif name in SECTIONS:
            reason = _fault(name, path, run_dir, run_id, min_scores)
            found[name] = {"part": SECTIONS[name][0], "ship": not reason, "reason": reason}
        else:
            known = ", ".join((*SECTIONS, *DIAGNOSTICS))
            raise fail("invalid_field", f"a release has no section {name[:60]!r}", f"Known: {known}.", ["section"])
    return found


def _fault(name: str, path: Path, run_dir: Path, run_id: str, min_scores: Mapping[str, float]) -> str:
    try:
        document = recount.unwrapped(read_object(path))
    except BashGymError as error:
        return error.message
    schema = SECTIONS[name][1]
    if document.get("schema_version") != schema:
        return f"its schema_version is {str(document.get('schema_version'))[:60]!r}, not {schema!r}"
    if document.get("simulated") or document.get("smoke"):
        return "it is of a smoke run or simulated"
    if name != "parity" and not recount.is_about(document, run_id, artifact_digests(run_dir)):
        return "it names neither this run nor its model"
    rules: dict[str, Callable[[], str]] = {
        "heldout": lambda: recount.heldout(document, path),
        "holdout_gate": lambda: recount.holdout(document),
        "holdout_comparison": lambda: recount.comparison(document),
        "spurious_reward_control": lambda: recount.control(document),
        "external_benchmarks": lambda: recount.external(document, min_scores),
        "forgetting": lambda: recount.forgetting(document),
        "parity": lambda: recount.parity(document, run_dir / "final"),
    }
    return rules[name]()


def ships(
    found: Mapping[str, Mapping[str, Any]], required: Collection[str], trace: bool, executed: bool
) -> tuple[dict[str, bool | None], list[str]]:
    """(part -> does it ship, null where nothing speaks for it; reasons). A part that is required and absent does not ship.

    `trace` is the verdict of the paired evaluation; on a suite that executes its verifiers it is environment evidence too.
    """
    said: dict[str, list[bool]] = {part: [] for part in PARTS}
    said["trace"].append(trace)
    if executed:
        said["environment"].append(trace)
    reasons = []
    for name, one in found.items():
        if one["part"] is not None:
            said[one["part"]].append(one["ship"])
            reasons += [] if one["ship"] else [f"{name}: {one['reason']}"]
    for part in PARTS:
        if part in required and not said[part]:
            said[part].append(False)
            reasons.append(f"{part} evidence is required and there is none")
    return {part: all(verdicts) if verdicts else None for part, verdicts in said.items()}, reasons
