"""`training runcard ...`. A card that is not ok is still written; the exit status is then 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.options import with_options
from bashgym.cli.output import Reply, safe, table
from bashgym.core.errors import fail

FILES = {
    "training_plan": "Training plan; the run's own by default.",
    "source_manifest": "Source manifest; the run's own by default.",
    "preference_pairs": "Preference pairs.",
    "reward_examples": "Reward examples.",
    "reward_eval": "Held-out reward evaluation.",
    "dataset_card": "Dataset card.",
    "metrics": "metrics.jsonl; the run's own by default.",
    "release_evidence": "Release evidence, or an eval report that it is built from; the run's own by default.",
    "smoke_bundle": "Smoke bundle.",
    "session_distillation_records": "Session distillation records.",
    "session_distillation_metrics": "Session distillation metrics.",
}
"""The files of a card that have an option of their own."""
Evidence = Annotated[list[str] | None, typer.Option(help="KIND=FILE of another kind of evidence; repeatable.")]
Promotion = Annotated[bool, typer.Option("--promotion", help="Judge it as a promotion.")]
ModelsDir = Annotated[Path | None, typer.Option(help="Folder of the run directories; data/models by default.")]


@with_options(FILES)
def create(
    *,
    run_id: Annotated[str, typer.Option(help="Run.")],
    training_method: Annotated[str, typer.Option(help="Training method.")],
    base_model: Annotated[str, typer.Option(help="Base model.")],
    compute_target: Annotated[str, typer.Option(help="Where it trained.")],
    output: Annotated[str, typer.Option(help="Card file.")],
    backend: Annotated[str | None, typer.Option(help="Training backend; from the run's manifest by default.")] = None,
    reader_model: Annotated[str, typer.Option(help="Session distillation: who read the sessions.")] = "",
    confidence_threshold: Annotated[float | None, typer.Option(help="Session distillation: least confidence.")] = None,
    hint_policy: Annotated[str, typer.Option(help="Session distillation: how hints were given.")] = "",
    mask_policy: Annotated[str, typer.Option(help="Session distillation: what was trained.")] = "",
    target_token_count: Annotated[int | None, typer.Option(help="Session distillation: trained tokens.")] = None,
    claim_tier: Annotated[str, typer.Option(help="local_smoke, narrow_routing or broad_public_claim.")] = "local_smoke",
    threshold: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER that has to be reached; repeatable.")] = None,
    output_artifact: Annotated[list[str] | None, typer.Option(help="What the run made; repeatable.")] = None,
    known_limitation: Annotated[list[str] | None, typer.Option(help="What it cannot do; repeatable.")] = None,
    decision: Annotated[str, typer.Option(help="pending, hold, promote, reject or route_narrowly.")] = "pending",
    evidence: Evidence = None,
    promotion: Promotion = False,
    no_git: Annotated[bool, typer.Option("--no-git", help="Leave the training code's commit out.")] = False,
    models_dir: ModelsDir = None,
    **files: str | None,
) -> Reply:
    """Write a RunCard, measure every file that it names, and judge it. Exit status 2 if it is not ok."""
    from bashgym.evidence import runcard

    doc = runcard.create(
        run_id=run_id,
        training_method=training_method,
        base_model=base_model,
        compute_target=compute_target,
        output=output,
        backend=backend,
        reader_model=reader_model,
        confidence_threshold=confidence_threshold,
        hint_policy=hint_policy,
        mask_policy=mask_policy,
        target_token_count=target_token_count,
        claim_tier=claim_tier,
        threshold=threshold or (),
        output_artifact=output_artifact or (),
        known_limitation=known_limitation or (),
        decision=decision,
        promotion=promotion,
        no_git=no_git,
        evidence=_evidence(evidence),
        models_dir=models_dir or _models_dir(),
        **files,
    )
    return _judged(doc)


def validate(
    path: Annotated[Path, typer.Argument(help="Card file.")],
    promotion: Promotion = False,
    models_dir: ModelsDir = None,
) -> Reply:
    """Check a RunCard and every file that it names again, changing nothing. Exit status 2 if it is not ok."""
    from bashgym.evidence import runcard

    return _judged(runcard.validate(path, promotion=promotion, models_dir=models_dir or _models_dir()))


@with_options(FILES)
def attach_evidence(
    *,
    path: Annotated[Path, typer.Argument(help="Card file.")],
    evidence: Evidence = None,
    claim_tier: Annotated[str | None, typer.Option(help="Raise or lower the claim.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the new card here instead of in place.")] = None,
    promotion: Promotion = False,
    models_dir: ModelsDir = None,
    **files: str | None,
) -> Reply:
    """Bind further evidence files to a RunCard by digest and judge it. Exit status 2 if it is not ok."""
    from bashgym.evidence import runcard

    doc = runcard.attach_evidence(
        path,
        evidence=_evidence(evidence),
        claim_tier=claim_tier,
        output=output,
        promotion=promotion,
        models_dir=models_dir or _models_dir(),
        **files,
    )
    return _judged(doc)


def list_cards(
    limit: Annotated[int, typer.Option(help="At most this many.", min=1, max=1000)] = 20, models_dir: ModelsDir = None
) -> Reply:
    """The RunCards of the run directories, newest first."""
    from bashgym.evidence import runcard

    doc = runcard.list_cards([models_dir or _models_dir()], limit)
    columns = ["run_id", "training_method", "base_model", "claim_tier", "decision", "path"]
    return Reply(doc, lambda: table(doc["run_cards"], columns))


def _models_dir() -> Path:
    from bashgym.core.settings import Settings

    return Settings.from_env().models_dir


def _evidence(pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or []:
        kind, equals, path = pair.partition("=")
        if not equals or not kind or not path:
            raise fail("usage", f"--evidence needs KIND=FILE, not {pair[:80]!r}")
        found[kind] = path
    return found


def _judged(doc: dict[str, Any]) -> Reply:
    def show() -> None:
        print(
            f"{'ok' if doc['ok'] else 'NOT OK'}  {safe(doc['path'])}\n{safe(doc['promotion_explanation']['headline'])}"
        )
        for finding in doc["findings"]:
            print(f"  {finding['level']} {finding['code']}: {safe(finding['message'])}")

    return Reply(doc, show, 0 if doc["ok"] else 2)
