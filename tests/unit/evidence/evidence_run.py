"""A finished SFT run with a held-out evaluation, as files; every digest in it is measured."""

import json
from pathlib import Path

from bashgym.core.canonical import digest_file
from bashgym.evidence.binding import artifact_digests
from bashgym.evidence.release import build_release_evidence
from bashgym.evidence.runcard import create
from bashgym.methods.plan import make_plan

RUN_ID = "run_20260101_000000_abcdef01"
BASE = "bashgym/tiny-qwen2"
BASE_DIGEST = "b" * 64
FAMILIES = ("count", "search", "archive", "copy", "sort", "mode", "link", "script")


def write_json(path: Path, value) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_lines(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def edit(path: Path, **changes) -> Path:
    return write_json(path, {**json.loads(path.read_text()), **changes})


def points(n=20):
    return [
        {"step": i, "ts": 1.0 * i, "loss": 3.0 / (1 + i), "grad_norm": 1.0, "learning_rate": 1e-4} for i in range(n)
    ]


def make_run(models: Path, *, strategy="sft", status="completed", run_id=RUN_ID, metrics=None) -> Path:
    run = models / run_id
    data = write_lines(
        models.parent / "train.jsonl",
        [
            {"messages": [{"role": "user", "content": f"train {i}"}, {"role": "assistant", "content": f"echo {i}"}]}
            for i in range(8)
        ],
    )
    digest = digest_file(data)
    write_json(run / "request.json", {"strategy": strategy, "run_id": run_id, "base_model": BASE})
    write_json(
        run / "manifest.json",
        {
            "schema_version": "bashgym.run_manifest.v1",
            "run_id": run_id,
            "strategy": strategy,
            "model": {"name": BASE, "path": str(models.parent / "base"), "digest": BASE_DIGEST},
            "dataset": {"path": str(data), "digest": digest, "rows": 8, "train_rows": 8},
            "environment": {"digest": "e" * 64},
            "code": {"version": "1.0", "git_commit": "c" * 40, "git_dirty": False},
            "backend": {"name": "plain"},
            "seed": 7,
            "forced": [],
        },
    )
    write_json(run / "run_state.json", {"run_id": run_id, "strategy": strategy, "status": status})
    write_lines(run / "metrics.jsonl", points() if metrics is None else metrics)
    write_json(run / "training_plan.json", make_plan(strategy))
    write_json(
        run / "source_manifest.json",
        {
            "schema_version": "bashgym.source_manifest.v1",
            "run_id": run_id,
            "sources": [{"path": str(data), "sha256": digest, "rows": 8, "format": "messages", "license": None}],
            "use_verdict": "allowed",
            "override_reason": "",
        },
    )
    write_json(run / "final" / "adapter_config.json", {"base_model_name_or_path": BASE})
    (run / "final" / "adapter_model.safetensors").write_bytes(b"weights " + run_id.encode())
    return run


def score_lines(passes, *, status=None, prompt="held out"):
    return [
        {
            "item_id": f"item{i}",
            "cluster": FAMILIES[i % len(FAMILIES)],
            "attempt": 0,
            "seed": 1,
            "passed": passed,
            "status": status or ("passed" if passed else "failed"),
            "prompt": f"{prompt} {i}",
            "completion": "x",
        }
        for i, passed in enumerate(passes)
    ]


def make_report(run: Path, *, scored=None, scored_base=None, n=40, eval_id="eval_1", **changes) -> Path:
    """An eval report of `run` in which the candidate passes 30 of 40 and the baseline 10, unless scores are given."""
    folder = run / "evals" / eval_id
    candidate = scored or score_lines([i % 4 != 0 for i in range(n)])
    baseline = scored_base or score_lines([i % 4 == 1 for i in range(n)])
    scores, rates = {}, {}
    for side, lines in (("candidate", candidate), ("baseline", baseline)):
        path = write_lines(folder / f"{side}.jsonl", lines)
        scores[side] = {"path": path.name, "sha256": digest_file(path)}
        known = [line["passed"] for line in lines if line.get("passed") is not None]
        rates[side] = {"value": sum(known) / len(known) if known else None}
    base = {line["item_id"]: line["passed"] for line in baseline if line["passed"] is not None}
    pairs = [(c["passed"], base[c["item_id"]]) for c in candidate if c["passed"] is not None and c["item_id"] in base]
    effect = sum(c - b for c, b in pairs) / len(pairs) if pairs else None
    report = {
        "schema_version": "bashgym.eval_report.v1",
        "eval_id": eval_id,
        "suite": {"name": "terminal", "digest": "5" * 64, "split": "heldout_families", "n_items": n, "executed": True},
        "candidate": {"label": "candidate", "digest": artifact_digests(run).get("final")},
        "baseline": {"label": "baseline", "digest": BASE_DIGEST},
        "n_items": n,
        "pass_rate": rates,
        "comparison": {"effect": effect, "ci_low": 0.3, "ci_high": 0.7, "verdict": "improved", "looks": 1},
        "scores": scores,
        "simulated": False,
        "smoke": False,
        **changes,
    }
    return write_json(folder / "report.json", report)


def make_card(run: Path, **changes):
    """The result of `create` beside the run."""
    values = {
        "run_id": RUN_ID,
        "training_method": "sft",
        "base_model": BASE,
        "compute_target": "local",
        "output": run / "run_card.json",
        "models_dir": run.parent,
        "promotion": True,
    }
    return create(**{**values, **changes})


def good_run(models: Path, **changes) -> Path:
    """A run with all that SFT promotion needs."""
    run = make_run(models, **changes)
    build_release_evidence(make_report(run), run_dir=run, output=run / "release_evidence.json")
    return run


def codes(result, level="fail"):
    return {finding["code"] for finding in result["findings"] if finding["level"] == level}
