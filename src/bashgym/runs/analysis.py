"""`training analyze`: what a run's curves and evidence say, and what to do next. RunCards decide, not this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bashgym.core.errors import fail
from bashgym.core.settings import Settings
from bashgym.methods.distillation import objective
from bashgym.runs import analysis_curves, analysis_rules
from bashgym.runs.analysis_facts import Facts, Finding, of_run, read_release, read_replay, read_smoke
from bashgym.runs.analysis_series import read_metrics

SCHEMA = "bashgym.run_analysis.v1"
_ORDER = ("blocker", "warning", "missing", "info")
_LEVELS = {"blocker": "blocked", "warning": "needs_attention", "missing": "insufficient_evidence"}
_HEADLINES = {
    "blocked": "Do not use this run: {0}",
    "needs_attention": "Read the warnings before going on: {0}",
    "insufficient_evidence": "Nothing is wrong, and nothing is proved: {0}",
    "ready_for_eval": "Nothing stands against evaluating this run.",
}


def analyze(
    *,
    run_id: str | None = None,
    run_dir: Path | None = None,
    metrics_path: Path | None = None,
    replay: Path | None = None,
    release_evidence: Path | None = None,
    smoke_bundle: Path | None = None,
    baseline_run_dir: Path | None = None,
) -> dict[str, Any]:
    """`bashgym.run_analysis.v1` of a run directory or of a metrics file alone.

    `metrics_path` may be a metrics.jsonl or a Hugging Face trainer_state.json. `run_not_found` and `file_missing` when
    what was named is not there, `usage` when nothing was named. Memory is bounded whatever the file's size.
    """
    facts = _facts(run_id, run_dir, metrics_path)
    release = release_evidence or (facts.run_dir / "release_evidence.json" if facts.run_dir else None)
    if release_evidence or (release and release.is_file()):
        facts.release = read_release(Path(release)) if release else None
    facts.smoke = read_smoke(smoke_bundle) if smoke_bundle else None
    facts.replay = read_replay(replay) if replay else None
    facts.baseline = of_run(None, baseline_run_dir) if baseline_run_dir else None
    findings = _findings(facts)
    inputs = {
        "run_dir": run_dir or facts.run_dir,
        "metrics": facts.metrics_path,
        "replay": replay,
        "release_evidence": release if facts.release else None,
        "smoke_bundle": smoke_bundle,
        "baseline_run_dir": baseline_run_dir,
    }
    topics = facts.method.recipe.docs if facts.method else ("metrics", "glossary")
    return {
        "schema_version": SCHEMA,
        "ok": True,
        "run_id": facts.run_id,
        "strategy": facts.strategy,
        "objective": objective(facts.request) or None,
        "status": facts.state.get("status"),
        "inputs": {name: str(path) if path else None for name, path in inputs.items()},
        "training_metrics": facts.metrics.describe(),
        "replay_summary": facts.replay,
        "release_evidence": {k: v for k, v in facts.release.items() if k != "_path"} if facts.release else None,
        "smoke_bundle": facts.smoke,
        "baseline": _baseline(facts),
        "verdict": _verdict(facts, findings),
        "findings": [finding.as_dict() for finding in findings],
        "docs": [{"topic": topic, "command": f"bashgym training docs --topic {topic}"} for topic in topics],
        "next": list(dict.fromkeys(finding.next for finding in findings if finding.next))[:5],
    }


def _facts(run_id: str | None, run_dir: Path | None, metrics_path: Path | None) -> Facts:
    if run_dir is None and run_id:
        run_dir = Settings.from_env().models_dir / run_id
    if run_dir is not None:
        return of_run(run_id, run_dir, metrics_path)
    if metrics_path is None:
        raise fail("usage", "name a run (--run-id) or a metrics file (--metrics)", fields=["run_id", "metrics"])
    return Facts(None, None, read_metrics(metrics_path), metrics_path)


def _findings(facts: Facts) -> list[Finding]:
    found: dict[str, Finding] = {}
    for rule in (*analysis_curves.RULES, *analysis_rules.RULES):
        for finding in rule(facts):
            found.setdefault(finding.code, finding)
    if all(finding.severity == "info" for finding in found.values()):
        found["no_immediate_issues"] = Finding(
            "info", "no_immediate_issues", "no rule objects", "Evaluate on the held-out suite, then create a RunCard."
        )
    return sorted(found.values(), key=lambda finding: _ORDER.index(finding.severity))


def _verdict(facts: Facts, findings: list[Finding]) -> dict[str, Any]:
    level = next((_LEVELS[s] for s in _ORDER[:3] if any(f.severity == s for f in findings)), "ready_for_eval")
    smoke, replay = facts.smoke or {}, facts.replay or {}
    return {
        "level": level,
        "headline": _HEADLINES[level].format(findings[0].message),
        "summary": {
            "blocked": level == "blocked",
            "has_heldout_signal": facts.heldout,
            "has_world_model_coverage": bool(replay.get("world_model")),
            "has_world_model_quality": analysis_rules.has_world_quality(facts),
            "has_backend_smoke_bundle": facts.smoke is not None,
            "backend_contract_ready": smoke.get("contract_ready", False),
            "backend_optimizer_ready": smoke.get("optimizer_ready", False),
            "backend_launch_ready": smoke.get("backend_launch_ready", False),
        },
    }


def _baseline(facts: Facts) -> dict[str, Any] | None:
    if facts.baseline is None:
        return None
    mine, theirs = analysis_curves.compare(facts), analysis_curves.compare(facts.baseline)
    return {
        "run_id": facts.baseline.run_id,
        "values": theirs,
        "delta": {
            name: None if value is None or (base := theirs[name]) is None else value - base
            for name, value in mine.items()
        },
    }
