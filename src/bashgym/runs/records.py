"""The documents that stand beside a run from its start: its plan, its sources, its tracking context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bashgym.core.runtime import runtime_digest
from bashgym.ledger.tracking import TrackingContext, check_measured, parse_context
from bashgym.methods.plan import make_plan

if TYPE_CHECKING:
    from bashgym.runs.prepare import Prepared


def settings_plan(prepared: Prepared) -> dict[str, Any]:
    """training_plan.json: the method's plan with this request's settings in the place of the starting ones."""
    plan = make_plan(prepared.request.strategy)
    used = {name: prepared.request[name] for name in plan["starting_settings"] if name in prepared.request.values}
    return {**plan, "settings": used, "estimate": prepared.estimate}


def source_manifest(run_id: str, prepared: Prepared) -> dict[str, Any]:
    """source_manifest.json: every file that the run learns from or is measured on, by digest."""
    report = prepared.report
    sources = [
        {
            "role": "train",
            "path": report.path,
            "sha256": report.sha256,
            "rows": report.rows,
            "format": report.format,
            "license": None,
        }
    ]
    eval_path = prepared.request["eval_dataset_path"]
    if eval_path:
        from pathlib import Path

        from bashgym.core.canonical import digest_file

        sources.append(
            {
                "role": "eval",
                "path": str(eval_path),
                "sha256": digest_file(Path(str(eval_path))),
                "rows": None,
                "format": None,
                "license": None,
            }
        )
    return {
        "schema_version": "bashgym.source_manifest.v1",
        "run_id": run_id,
        "sources": sources,
        "use_verdict": "allowed",
        "override_reason": "",
    }


def tracking_of(prepared: Prepared) -> TrackingContext | None:
    """The request's tracking context, its digests compared with what was measured; None leaves the run unassigned."""
    stated = prepared.request["tracking"]
    if not stated:
        return None
    context = parse_context(stated)
    check_measured(
        context,
        dataset_digest=prepared.report.sha256,
        model_config_digest=prepared.model.config_digest,
        environment_digest=runtime_digest(prepared.runtime),
    )
    return context
