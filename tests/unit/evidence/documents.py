"""Documents that satisfy kinds of evidence, as their makers write them, and the ways to spoil each."""

from evidence_run import BASE_DIGEST, RUN_ID

from bashgym.envs.canaries import categories, summarise
from bashgym.evidence.binding import artifact_digests


def canaries():
    rows = [
        {"canary_id": f"{name}:a", "category": name, "guarded": True, "invalid": False, "passed": False}
        for name in categories()
    ]
    return {
        "schema_version": "bashgym.reward_hacking_canaries.v1",
        "run_id": RUN_ID,
        "summary": summarise(rows),
        "canaries": rows,
    }


def holdout():
    return {
        "schema_version": "bashgym.environment_holdout.v1",
        "model_id": RUN_ID,
        "contamination": {"n": 0},
        "gate": {
            "ship": True,
            "reasons": [],
            "thresholds": {"min_pass_at_1": 0.05},
            "observed": {"n_environments": 6, "pass_at_1": 0.6, "pass_at_1_ci_low": 0.3, "tamper_rate": 0.0},
        },
    }


def comparison():
    rows = [{"environment_id": f"e{i}", "cluster": f"c{i % 7}", "base": 0.25, "candidate": 0.75} for i in range(21)]
    summary = {"tamper_rate": 0.0, "timeout_rate": 0.1}
    return {
        "schema_version": "bashgym.environment_holdout_comparison.v1",
        "model_id": RUN_ID,
        "base": {"attempt_summary": dict(summary)},
        "candidate": {"attempt_summary": dict(summary)},
        "comparison": {"verdict": "improved", "effect": 0.5, "ci_low": 0.2, "per_environment": rows},
        "gate": {"ship": True, "reasons": []},
    }


def heldout():
    return {
        "schema_version": "bashgym.heldout_report.v1",
        "model_id": RUN_ID,
        "n": 60,
        "ship": True,
        "reasons": [],
        "bootstrap": {"better": True, "ci_low": 0.1},
        "contaminated_rows": [],
    }


def report(run):
    return {
        "schema_version": "bashgym.eval_report.v1",
        "candidate": {"digest": artifact_digests(run)["final"]},
        "baseline": {"digest": BASE_DIGEST},
        "n_items": 40,
        "comparison": {"verdict": "improved", "ci_low": 0.2},
        "simulated": False,
    }


def both(run):
    teacher = {
        **report(run),
        "baseline": {"digest": "t" * 64},
        "comparison": {"verdict": "inconclusive", "ci_low": -0.1},
    }
    return {"schema_version": "bashgym.base_and_teacher_comparison.v1", "base": report(run), "teacher": teacher}


def cascade():
    stages = [{"domain": "bash_commands", "status": "completed", "card_ok": True}]
    return {"schema_version": "bashgym.cascade.v1", "run_id": RUN_ID, "stages": stages}


def retrieval():
    sections = ("frozen_split", "retrieval_metrics", "hard_slices", "latency_footprint", "contamination_control")
    return {
        "schema_version": "bashgym.retrieval_report.v1",
        "run_id": RUN_ID,
        **{name: {"ok": True} for name in sections},
    }
