"""How fast and how well-formed a policy answers: `inference_benchmark.json`, from which two plots are drawn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from polyguard import DISCLAIMER
from polyguard.env.engine import Engine
from polyguard.env.parse import parse_action
from polyguard.env.types import Action
from polyguard.evaluation.play import Scenario
from polyguard.evaluation.report import SCHEMA_VERSION, quantile
from polyguard.policies.base import Policy


def benchmark(
    policy: Policy,
    chosen: Sequence[Scenario],
    *,
    runs: int,
    provider: str,
    model: str,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """First steps of the scenarios, one by one, `runs` times over; each run also tells what its answers were worth."""
    rows = []
    for number in range(runs):
        rows.append({"run": number, **_run(policy, chosen)})
        say(
            f"run {number + 1}/{runs}: {rows[-1]['latency_ms']['mean']:.1f} ms, valid {rows[-1]['valid_json_rate']:.2f}"
        )
    names = ("valid_json_rate", "candidate_valid_rate", "legality_rate", "avg_reward")
    return {
        "schema_version": SCHEMA_VERSION,
        "disclaimer": DISCLAIMER,
        "provider": provider,
        "model": model,
        "policy": policy.name,
        "samples": len(chosen),
        "runs": rows,
        "mean": {name: round(statistics.fmean(row[name] for row in rows), 6) for name in names},
        "latency_ms": {
            key: round(statistics.fmean(row["latency_ms"][key] for row in rows), 3) for key in ("mean", "p50", "p95")
        },
    }


def _run(policy: Policy, chosen: Sequence[Scenario]) -> dict[str, Any]:
    latencies, valid, named, legal, rewards = [], 0, 0, 0, []
    for item in chosen:
        engine = Engine()
        observation = engine.reset(item.task_id, split=item.split, index=item.index)
        policy.begin(1)
        began = time.perf_counter()
        said = policy.act([observation])[0]
        latencies.append((time.perf_counter() - began) * 1000)
        action = said if isinstance(said, Action) else parse_action(said).action
        valid += action is not None
        named += action is not None and action.candidate_id in {
            option.candidate_id for option in observation.candidates
        }
        result = engine.step(said)
        legal += result.verdict.legal
        rewards.append(result.reward)
    n, ordered = len(chosen), sorted(latencies)
    return {
        "n": n,
        "valid_json_rate": valid / n,
        "candidate_valid_rate": named / n,
        "legality_rate": legal / n,
        "avg_reward": statistics.fmean(rewards),
        "latency_ms": {
            "mean": round(statistics.fmean(latencies), 3),
            "p50": quantile(ordered, 0.5),
            "p95": quantile(ordered, 0.95),
        },
    }
