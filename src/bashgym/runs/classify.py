"""`training classify`: what kind of run it was and what is known about it, from its files and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.inspection import part
from bashgym.evidence.runcard import validate
from bashgym.methods import registry
from bashgym.methods.distillation import objective
from bashgym.runs.analysis_series import Metrics, read_metrics

SCHEMA = "bashgym.run_classification.v1"
TERMINAL_PROFILE = "terminal_rl_tmax_like"
_HISTORY = ("evaluation_history", "heldout_evals", "environment_holdout_evals")


def classify(run_dir: Path) -> dict[str, Any]:
    """`bashgym.run_classification.v1`. `run_not_found` if the folder holds no run.

    The method comes from the run's record, never from a model's name; GRPO settings without the terminal profile do not
    make terminal RL; a status file's last metrics are no evidence.
    """
    state, request = read_or_empty(run_dir / "run_state.json"), read_or_empty(run_dir / "request.json")
    if not state and not request:
        raise fail("run_not_found", f"no run at {run_dir}", hint="`bashgym training list` shows the runs.")
    path = run_dir / "metrics.jsonl"
    metrics = read_metrics(path) if path.is_file() else Metrics()
    profile, manifest = read_or_empty(run_dir / "model_profile.json"), read_or_empty(run_dir / "manifest.json")
    evidence = _evidence(run_dir, metrics, profile)
    evaluated = any(evidence[name] for name in _HISTORY) or evidence["eval_reports"] > 0
    status = str(state.get("status") or "unknown")
    reasons = _reasons(state, metrics, evidence, evaluated)
    return {
        "schema_version": SCHEMA,
        "run_id": str(state.get("run_id") or request.get("run_id") or run_dir.name),
        "status": status,
        "method": _method(str(state.get("strategy") or request.get("strategy") or "")),
        "objective": objective(request) or None,
        "training_profile": str(request.get("training_profile") or "default"),
        "terminal_rl": request.get("training_profile") == TERMINAL_PROFILE,
        "backend": str(part(manifest, "backend").get("name") or "") or None,
        "world_model_objective": [n for n in ("echo", "rwml") if request.get(f"{n}_enabled") is True] or None,
        "evidence": evidence,
        "complete_for_promotion": not reasons,
        "label": _label(status, metrics, evaluated, evidence),
        "reasons": reasons,
    }


def _method(strategy: str) -> str | None:
    try:
        return registry.get(strategy).name
    except BashGymError:
        return strategy or None


def _evidence(run_dir: Path, metrics: Metrics, profile: dict[str, Any]) -> dict[str, Any]:
    held = metrics.get("eval_loss")
    card, card_ok, decision = run_dir / "run_card.json", False, None
    if card.is_file():
        try:
            judged = validate(card, promotion=True, models_dir=run_dir.parent)
            card_ok, decision = bool(judged["ok"]), judged["decision"]
        except BashGymError:
            card_ok = False
    return {
        "metrics": metrics.points > 0,
        "metrics_finite": metrics.points > 0 and not metrics.flagged,
        "model_profile": bool(profile),
        "run_card": card.is_file(),
        "run_card_ok": card_ok,
        "run_card_decision": decision,
        "eval_loss": held.last if held else None,
        "eval_reports": _links(run_dir),
        **{name: len(profile.get(name) or []) for name in _HISTORY},
    }


def _links(run_dir: Path) -> int:
    """Evaluations that are linked to the run."""
    links = (read_or_empty(path) for path in run_dir.glob("evals/*.json"))
    return sum(link.get("schema_version") == "bashgym.eval_link.v1" for link in links)


def _reasons(state: dict[str, Any], metrics: Metrics, evidence: dict[str, Any], evaluated: bool) -> list[str]:
    """Why the run is not complete for promotion; empty when it is."""
    status = state.get("status")
    status_only = status == "failed" and state.get("last_metrics") and not metrics.points
    checks = (
        (status != "completed", f"the run is {status or 'without a state'}, not completed"),
        (not evidence["metrics"], "metrics.jsonl is missing or empty"),
        (status_only, "the last metrics in run_state.json are status, not evidence"),
        (evidence["metrics"] and not evidence["metrics_finite"], "the metrics hold NaN or infinity: the run diverged"),
        (not evidence["model_profile"], "model_profile.json is missing"),
        (not evaluated, "evaluation_history, heldout_evals and environment_holdout_evals are all empty"),
        (not evidence["run_card"], "there is no RunCard"),
        (evidence["run_card"] and not evidence["run_card_ok"], "the RunCard does not validate for promotion"),
    )
    return [reason for failed, reason in checks if failed]


def _label(status: str, metrics: Metrics, evaluated: bool, evidence: dict[str, Any]) -> str:
    if status != "completed":
        return "stopped" if status == "cancelled" else status
    if metrics.flagged:
        return "trained, diverged"
    if evidence["run_card_ok"]:
        return "trained, evaluated, evidence complete"
    if evaluated:
        return "trained, evaluated"
    return "trained, unevaluated" if evidence["eval_loss"] is None else "trained, eval loss only"
