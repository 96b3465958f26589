"""Documents that satisfy kinds of evidence, made by the code that makes them for users, from a few attempts and scores."""

import random

from evidence_run import RUN_ID, make_report, write_json, write_lines

from bashgym.core.canonical import digest_file, digest_json
from bashgym.envs.canaries import categories, summarise
from bashgym.evals.environment_comparison import (
    ComparisonRequest,
    ControlRequest,
    holdout_comparison,
    spurious_reward_control,
)
from bashgym.evals.holdout import HoldoutRequest, holdout_gate
from bashgym.evals.wire import decode

TEACHER_DIGEST = "7" * 64
SPECS = [
    {
        "id": f"env_{i}",
        "instruction": f"Do task {i}",
        "domain": f"domain{i % 8}",
        "metadata": {"task_family": f"family{i % 8}"},
        "verifier": {"command": "test -e out"},
    }
    for i in range(24)
]


def attempts(rate, seed=0):
    draw = random.Random(seed)
    passed = [[draw.random() < rate for _ in range(4)] for _ in SPECS]
    return [
        {"environment_id": f"env_{i}", "attempt_index": j, "passed": ok, "reward": float(ok)}
        for i, row in enumerate(passed)
        for j, ok in enumerate(row)
    ]


def canaries():
    rows = [
        {
            "canary_id": f"{name}:a",
            "category": name,
            "guarded": True,
            "invalid": False,
            "passed": False,
            "outside": "",
            "verifier_status": "tampered",
            "expected_status": ["tampered"],
            "control_beaten": True,
            "honest_passes": True,
        }
        for name in categories()
    ]
    return {
        "schema_version": "bashgym.reward_hacking_canaries.v1",
        "run_id": RUN_ID,
        "summary": summarise(rows),
        "canaries": rows,
    }


def holdout():
    body = {"model_id": RUN_ID, "environments": SPECS, "attempts": attempts(0.7), "holdout_fraction": 0.5}
    return holdout_gate(decode(body, HoldoutRequest))


def comparison():
    body = {
        "model_id": RUN_ID,
        "environments": SPECS,
        "base_attempts": attempts(0.2),
        "candidate_attempts": attempts(0.8, seed=1),
    }
    return holdout_comparison(decode(body, ComparisonRequest))


def control():
    body = {"model_id": RUN_ID, "environments": SPECS, "attempts": attempts(0.7)}
    return spurious_reward_control(decode(body, ControlRequest))


def sealed(document):
    body = {name: value for name, value in document.items() if name != "report_digest"}
    return {**body, "report_digest": digest_json(body)}


def heldout(folder, n=40):
    """A held-out report, with its scores in `folder`."""
    lines = [
        {"row": i, "cluster": f"s{i % 10}", "base": float(i % 4 == 1), "candidate": float(i % 4 != 0)} for i in range(n)
    ]
    scores = write_lines(folder / "scores.jsonl", lines)
    return sealed(
        {
            "schema_version": "bashgym.heldout_report.v1",
            "model_id": RUN_ID,
            "metric": "exact_match",
            "n": n,
            "trace_delta": sum(line["candidate"] - line["base"] for line in lines) / n,
            "bootstrap": {"verdict": "improved", "better": True, "gate": {"looks": 1}},
            "forgetting_drops": {"gsm8k": 0.01},
            "contaminated_rows": {},
            "ship": True,
            "reasons": [],
            "scores": {"path": "scores.jsonl", "sha256": digest_file(scores)},
        }
    )


def external(value=0.6):
    return {
        "schema_version": "bashgym.external_benchmark.v1",
        "model_id": RUN_ID,
        "tasks": {"gsm8k": {"value": value, "n": 100}},
    }


def forgetting(candidate=0.59):
    found = {
        "drops": {"gsm8k": 0.6 - candidate},
        "base": {"gsm8k": 0.6},
        "candidate": {"gsm8k": candidate},
        "missing": {"candidate": [], "base": []},
        "max_forgetting_drop": 0.05,
    }
    return {"model_id": RUN_ID, "forgetting": found, "forgetting_ok": True, "recorded": False}


def parity(run):
    tokenizer = write_json(run / "final/tokenizer.json", {"model": "bpe"})
    return {
        "schema_version": "bashgym.parity_report.v1",
        "ok": True,
        "n_comparisons": 32,
        "n_mismatches": 0,
        "tokenizer": {"tokenizer.json": digest_file(tokenizer)},
    }


def report(run):
    """The eval report that the run's release evidence is built from."""
    return make_report(run)


def teacher_report(run):
    """The same model against the teacher: as good, which is all that is asked."""
    return make_report(run, eval_id="eval_teacher", baseline={"label": "teacher", "digest": TEACHER_DIGEST})


def retrieval():
    rows = [
        {
            "query_id": f"q{i}",
            "slice": ("easy", "rare")[i % 2],
            "candidate": {"ndcg_at_10": 0.8 - 0.01 * (i % 3), "mrr": 0.7, "recall_at_k": 0.9},
            "incumbent": {"ndcg_at_10": 0.6, "mrr": 0.6, "recall_at_k": 0.9},
        }
        for i in range(24)
    ]
    return {
        "schema_version": "bashgym.retrieval_report.v1",
        "run_id": RUN_ID,
        "frozen_split": {"queries_sha256": "1" * 64, "judgements_sha256": "2" * 64},
        "queries": rows,
        "hard_slices": ["rare"],
        "latency": {"query_latency_ms": 3.0, "budget_ms": 10.0, "index_bytes": 1 << 20, "memory_bytes": 1 << 22},
        "contamination": {"n_checked": 200, "n": 0},
    }
