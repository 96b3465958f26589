"""Inputs that the ledger's tests share."""

from bashgym.ledger.service import Ledger
from bashgym.ledger.tracking import TrackingContext, parse_context

W, P = "team-a", "shell"
DATA, CONFIG, RUNTIME = "d" * 64, "c" * 64, "e" * 64


def context(**changes: object) -> TrackingContext:
    return parse_context(
        {
            "workspace_id": W,
            "project_id": P,
            "project_display_name": "Shell tasks",
            "experiment_id": "copying",
            "experiment_name": "Copying",
            "objective": "Does the model learn to copy?",
            "task_type": "terminal",
            "model_id": "tiny",
            "model_version_id": "tiny-1",
            "model_source_uri": "bashgym/tiny-qwen2",
            "model_config_digest": CONFIG,
            "dataset_id": "corpus",
            "dataset_version_id": "corpus-1",
            "dataset_source_uri": "corpus.jsonl",
            "dataset_content_digest": DATA,
            "environment_id": "laptop",
            "environment_runtime_digest": RUNTIME,
            **changes,
        }
    )


def register(ledger: Ledger, run_id: str, tracking: TrackingContext | None = None, **changes: object) -> dict:
    facts = {
        "request": {"strategy": "sft", "num_epochs": 1},
        "strategy": "sft",
        "run_dir": f"/runs/{run_id}",
        "model": {"name": "bashgym/tiny-qwen2", "config_digest": CONFIG},
        "dataset": {"path": "corpus.jsonl", "digest": DATA, "rows": 3},
        "environment": {"digest": RUNTIME},
        "recipe_digest": "a" * 64,
    }
    return ledger.register_run(run_id=run_id, tracking=tracking, **{**facts, **changes})


def tracked(ledger: Ledger, run_id: str, **changes: object) -> dict:
    return register(ledger, run_id, context(), **changes)


def finish(ledger: Ledger, run_id: str, status: str = "completed") -> None:
    ledger.set_status(run_id, "running")
    ledger.set_status(run_id, status, final_metrics={"loss": 0.5})


def suite(ledger: Ledger, suite_id: str = "terminal-1", **changes: object) -> dict:
    body = {
        "evaluation_suite_id": suite_id,
        "name": "Terminal",
        "task_type": "terminal",
        "metric_contract": {"pass_rate": {"direction": "maximize"}},
        "code_digest": "f" * 64,
        **changes,
    }
    return ledger.create(W, P, "evaluation-suites", body)


def result(ledger: Ledger, run_id: str, value: float, suite_id: str = "terminal-1", **changes: object) -> dict:
    body = {"evaluation_suite_id": suite_id, "run_id": run_id, "metrics": {"pass_rate": value}, **changes}
    return ledger.create(W, P, "evaluation-results", body)
