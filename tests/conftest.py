"""A finished demo with hostile words in every place where a model or a user can put some."""

import json

import pytest

from bashgym.demo.story import SecondAct, Story
from bashgym.store.run_dir import RunDir, RunState, RunStatus

EVIL = '<script>alert(1)</script><img src=x onerror="x()">{{ 7*7 }}\x1b[31m'


@pytest.fixture
def story(tmp_path):
    run = RunDir(tmp_path / "run_1")
    run.path.mkdir()
    run.write_state(RunState(run_id="run_1", strategy="sft", status=RunStatus.COMPLETED))
    run.write_json("request.json", {"strategy": "sft"})
    run.write_json(
        "manifest.json",
        {
            "model": {"name": EVIL, "digest": "a" * 64, "n_parameters": 1_100_000},
            "dataset": {"rows": 10, "train_rows": 10, "digest": "b" * 64},
            "environment": {"python": "3.11", "system": "Linux", "machine": "x86_64", "packages": {"torch": "2"}},
            "strategy": "sft",
            "created_at": "2026-01-01T00:00:00Z",
            "request_digest": "c" * 64,
            "seed": 1,
        },
    )
    nan = '{"step":2,"loss":null,"non_finite":{"loss":"NaN"}}'
    run.metrics_path.write_text('{"step":1,"loss":2.0}\n{"step":2,"loss":1.0}\n' + nan + "\n")
    run.file("samples.jsonl").write_text(
        json.dumps({"step": 1, "prompt": EVIL, "completion": EVIL, "expected": "x"}) + "\n"
    )
    scores = {}
    for label in ("baseline", "candidate"):
        path = tmp_path / f"{label}.jsonl"
        row = {
            "item_id": "i1",
            "cluster": EVIL,
            "attempt": 0,
            "completion": EVIL,
            "prompt": [{"role": "user", "content": EVIL}],
        }
        path.write_text(json.dumps(row) + "\n")
        scores[label] = {"path": str(path), "sha256": "d" * 64}
    rate = {"value": 0.5, "ci_low": 0.2, "ci_high": 0.8, "n": 10}
    report = {
        "eval_id": "eval_1",
        "suite": {"name": "terminal", "split": "heldout_values", "seed": 1, "n_items": 1, "digest": "e" * 64},
        "candidate": {"digest": "f" * 64},
        "pass_rate": {"baseline": rate, "candidate": rate},
        "comparison": {
            "effect": 0.0,
            "ci_low": -0.1,
            "ci_high": 0.1,
            "method": "m",
            "n": 10,
            "n_clusters": 2,
            "verdict": "inconclusive",
        },
        "by_cluster": [{"cluster": EVIL[:20], "n": 1, "baseline": 0.0, "candidate": 1.0}],
        "flips": {"gained": ["i1"], "lost": []},
        "scores": scores,
    }
    card = {
        "ok": False,
        "run_card": {"decision": "hold"},
        "findings": [{"level": "fail", "code": "x", "message": EVIL}],
    }
    second = RunDir(tmp_path / "run_2")
    second.path.mkdir()
    second.metrics_path.write_text('{"step":1,"reward":0.25,"frac_reward_zero_std":0.5}\n{"step":2,"reward":null}\n')
    act = SecondAct(second, report, card, second.file("run_card.json"))
    return Story(run, {"held-out": report}, card, run.file("run_card.json"), {"SFT": 1.0}, [EVIL], act)
