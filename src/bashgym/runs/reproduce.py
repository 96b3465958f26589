"""Run it again and see whether it comes out the same: what has changed since, a linked new run, and the comparison.

The same bits can be expected on the same device class with the same packages (tested on CPU). Elsewhere the comparison
says how far the metrics went apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bashgym.core.canonical import digest_tree
from bashgym.core.errors import fail
from bashgym.runs.diff import NOT_THE_RECIPE, manifest_differences, metrics_side_by_side
from bashgym.store.run_dir import RunDir, RunStatus

if TYPE_CHECKING:
    from bashgym.runs.service import RunService

_OTHER_RUN = frozenset({"model.digest", "dataset.digest", "dataset.train_rows", "teacher.digest"})
"""Deviations that make it another experiment, not a repetition."""


def reproduce(
    runs: RunService,
    run_id: str,
    *,
    dry_run: bool = False,
    allow: bool = False,
    queued: bool = False,
) -> dict[str, Any]:
    """{reproduces, deviations, exact_possible, ...}; without `dry_run` also the new run, linked by the event `reproduces`.

    Raises `digest_mismatch` where model or data are not those of the run, unless `allow`; and what a start raises.
    """
    old = runs.locate(run_id)
    body = {name: value for name, value in old.request().items() if name not in NOT_THE_RECIPE - {"tracking"}}
    force = old.manifest().get("forced", [])
    deviations = deviations_of(old, runs.check(body, force).manifest("run_dry"))
    doc = {"reproduces": run_id, "deviations": deviations, "exact_possible": not deviations, "dry_run": dry_run}
    if dry_run:
        return doc
    if (other := [d for d in deviations if d["breaks"]]) and not allow:
        said = "; ".join(f"{d['what']} was {_short(d['was'])}, is {_short(d['now'])}" for d in other)
        raise fail(
            "digest_mismatch",
            f"a new run would not repeat {run_id}: {said}",
            hint="Restore the files, or start it all the same with --allow-deviations.",
            fields=[str(d["what"]) for d in other],
        )
    event = ("reproduces", {"run_id": run_id, "deviations": deviations})
    return {**doc, **runs.start(body, force=force, queued=queued, event=event)}


def deviations_of(old: RunDir, now: dict[str, Any]) -> list[dict[str, Any]]:
    """[{what, was, now, breaks}]: what the manifest of a start today says otherwise than the run's own."""
    then = old.manifest()
    found = [
        {
            "what": f"{section}.{difference['field']}",
            "was": difference["a"],
            "now": difference["b"],
            "breaks": f"{section}.{difference['field']}" in _OTHER_RUN,
        }
        for section, differences in manifest_differences(then, now).items()
        for difference in differences
    ]
    if then["code"].get("git_dirty") and now["code"].get("git_dirty"):
        what = "code.uncommitted changes, which no record tells apart"
        found.append({"what": what, "was": True, "now": True, "breaks": False})
    return found


def compare(runs: RunService, run_id: str, new_id: str) -> dict[str, Any]:
    """{identical, weights, first_different_step, metrics, verdict} of two finished runs.

    Identical means: every byte of the safetensors files in final/ is the same. Raises `invalid_transition` while one of
    them has no final/.
    """
    old, new = runs.locate(run_id), runs.locate(new_id)
    for run in (old, new):
        state = run.state()
        if state.status != RunStatus.COMPLETED or not run.file("final").is_dir():
            raise fail(
                "invalid_transition",
                f"{run.run_id} is {state.status}: only completed runs with final/ can be compared",
                hint=f"`bashgym training get {run.run_id}` shows where it stands.",
            )
    digests = [digest_tree(run.file("final"), suffixes=(".safetensors",)) for run in (old, new)]
    step = _first_different_step(old, new)
    identical = digests[0] == digests[1]
    return {
        "run_id": run_id,
        "new_run_id": new_id,
        "identical": identical,
        "weights": {"was": digests[0], "now": digests[1]},
        "first_different_step": step,
        "metrics": metrics_side_by_side(old.state().last_metrics, new.state().last_metrics),
        "verdict": _verdict(identical, step),
    }


def _verdict(identical: bool, step: int | None) -> str:
    if identical:
        return "reproduced: the final weights are the same, bit by bit"
    if step is None:
        return "not the same bits, though every logged loss is the same"
    return f"not the same bits: the loss differs from step {step} on"


def _first_different_step(old: RunDir, new: RunDir) -> int | None:
    """The first step whose logged loss differs or that only one of them has; None if there is none."""
    first, second = ({p["step"]: p["loss"] for p in run.metrics() if "loss" in p} for run in (old, new))
    return min((s for s in {*first, *second} if first.get(s) != second.get(s)), default=None)


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) > 40 else text
