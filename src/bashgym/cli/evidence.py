"""`bashgym evidence ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.options import with_options
from bashgym.cli.output import Reply, safe

Run = Annotated[str, typer.Option("--run", help="Run id.")]
SECTIONS = {
    "heldout": "Report of `bashgym eval heldout`.",
    "holdout_gate": "Output of `bashgym eval holdout-gate`.",
    "holdout_comparison": "Output of `bashgym eval holdout-comparison`.",
    "spurious_reward_control": "Output of `bashgym eval spurious-control`.",
    "external_benchmarks": "Output of `bashgym eval external-ingest`; --min-score says what is enough.",
    "forgetting": "Output of `bashgym eval benchmarks-ingest`.",
    "parity": "Output of `bashgym eval parity`.",
    "world_model_quality": "World-model metrics: a diagnostic, it promotes nothing.",
    "learned_reward_evidence": "Evaluation of a reward model: a diagnostic, it promotes nothing.",
}
"""What may stand beside the evaluation; see `bashgym.evidence.sections`."""
Target = Annotated[Path, typer.Argument(help="Bundle (folder or .tar), run directory, or card file.")]


def _run_dir(run: str) -> Path:
    from bashgym.workspace import Workspace

    return Workspace.open().runs.locate(run).path


@with_options(SECTIONS)
def release(
    *,
    run: Run,
    eval_report: Annotated[Path, typer.Option(help="Report of `bashgym eval run` for this run's model.")],
    min_score: Annotated[
        list[str] | None, typer.Option(help="TASK=NUMBER, a benchmark's least score; repeatable.")
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="Part that must not be absent; repeatable.")] = None,
    min_effect: Annotated[float, typer.Option(help="Smallest gain that ships.", min=0, max=1)] = 0.0,
    output: Annotated[Path | None, typer.Option(help="File; release_evidence.json of the run by default.")] = None,
    **beside: str | None,
) -> Reply:
    """Build the release evidence of a run, every verdict recomputed from scores and counts. Exit status 1: does not ship."""
    from bashgym.evidence.release import build_release_evidence
    from bashgym.evidence.runcard import parse_thresholds

    folder = _run_dir(run)
    target = output or folder / "release_evidence.json"
    doc = build_release_evidence(
        eval_report,
        run_dir=folder,
        min_effect=min_effect,
        output=target,
        beside={name: Path(path) for name, path in beside.items() if path},
        min_scores=parse_thresholds(min_score or ()),
        required=require or (),
    )
    gate = doc["release_gate"]

    def show() -> None:
        print(f"{'ships' if doc['ship'] else 'does not ship'}: {safe(str(target))}")
        for reason in gate["reasons"]:
            print(f"  {safe(reason)}")

    return Reply({**doc, "output": str(target)}, show, exit_code=0 if doc["ship"] else 1)


def manifests(
    run: Run,
    heldout: Annotated[Path, typer.Option(help="The rows that were held out; a score file of `eval run` will do.")],
) -> Reply:
    """Write split_manifest.json and decontamination_manifest.json of a run. Exit status 2: held-out questions were trained on."""
    from bashgym.evidence.manifests import write

    doc = write(_run_dir(run), heldout.absolute())
    found = doc["decontamination_manifest"]["contaminated"]

    def show() -> None:
        print(
            f"{doc['split_manifest']['heldout_questions']} held-out questions, {len(found)} of them in the training rows"
        )
        for name, hit in list(found.items())[:20]:
            print(f"  {safe(name)}: {hit['kind']} (row {hit['row']})")

    return Reply(doc, show, exit_code=2 if found else 0)


def bundle(
    run: Run, output: Annotated[Path, typer.Option(help="New folder, or a new file that ends in .tar.")]
) -> Reply:
    """Copy a run's card and all that stands behind it into a sealed bundle."""
    from bashgym.evidence.archive import bundle as make

    doc = make(_run_dir(run), output.absolute())
    return Reply(doc, lambda: print(f"{doc['n_files']} files, {doc['size_bytes'] / 1e6:.1f} MB in {safe(doc['path'])}"))


def verify(
    path: Target,
    public_key: Annotated[Path | None, typer.Option(help="The signature must be this key's.")] = None,
    promotion: Annotated[bool, typer.Option("--promotion", help="Judge it as a promotion.")] = False,
) -> Reply:
    """Hash every file again and recompute the verdict from the scores. Exit status 2 if anything differs or does not hold."""
    from bashgym.evidence.archive import verify as check

    doc = check(path.absolute(), public_key=public_key, promotion=promotion)
    return Reply(doc, lambda: _show(doc), exit_code=0 if doc["ok"] else 2)


def explain(path: Target) -> Reply:
    """What is claimed, what stands behind it, what is missing, and the command that mends each gap."""
    from bashgym.evidence.archive import verify as check
    from bashgym.evidence.narrative import explain as tell

    doc = tell(check(path.absolute(), promotion=True))
    return Reply(doc, lambda: print("\n".join(safe(line) for line in doc["lines"])))


def keygen(output: Annotated[Path, typer.Option(help="File for the private key; the public one gets .pub.")]) -> Reply:
    """Make an Ed25519 key pair. The private key's file is readable by you alone."""
    from bashgym.evidence.signing import keygen as make

    return Reply(make(output.absolute()))


def sign(
    path: Annotated[Path, typer.Argument(help="Bundle folder.")],
    key: Annotated[Path, typer.Option(help="Private key file.")],
) -> Reply:
    """Sign a bundle's manifest. A bundle that is not as it was sealed is refused."""
    from bashgym.evidence.archive import sign as seal

    return Reply(seal(path.absolute(), key))


def _show(doc: dict[str, Any]) -> None:
    print(
        f"{'holds' if doc['ok'] else 'DOES NOT HOLD'}: {safe(doc['run_id'])}, decision {doc['decision']}, {doc['claim_tier']}"
    )
    for problem in doc["problems"]:
        print(f"  {safe(problem['file'])}: {problem['problem']}")
    for finding in doc["findings"]:
        if finding["level"] != "diagnostic":
            print(f"  {finding['level']}  {finding['code']}: {safe(finding['message'])}")
    for line in doc["not_recomputed"]:
        print(f"  not recomputed: {safe(line)}")
    if doc["signed_by"]:
        print(f"  signed by {doc['signed_by']}")
