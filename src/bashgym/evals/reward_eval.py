"""How good a reward model is, from its predictions: accuracy on held-out pairs, calibration, bias, leakage.

Rows are reward examples with a prediction: `predicted_reward` (or an alias) for an answer, `predicted_chosen` and
`predicted_rejected` for a pair, `predicted_steps` for a process. Outcome rows of one prompt with different rewards are
compared as pairs too, and so are the steps of one process.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from bashgym.core.errors import fail
from bashgym.data.findings import Collector
from bashgym.data.readers import Scan
from bashgym.data.reward_examples import finite
from bashgym.evals import stats

SCHEMA = "bashgym.reward_model_eval.v1"
PREDICTIONS = ("predicted_reward", "predicted_score", "model_score", "reward_model_score", "prediction")
MAX_PAIRS_PER_PROMPT = 200
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Answer:
    """One scored answer."""

    prompt: str
    text: str
    predicted: float
    reward: float | None
    cluster: str
    slice: str


@dataclass(frozen=True)
class Pair:
    """One comparison: the first should score higher."""

    better: Answer
    worse: Answer


def evaluate(path: Path, *, split: str = "eval", bins: int = 10, run_id: str = "") -> dict[str, Any]:
    """The report. `ok` needs predictions for every row of the split, pairs, no leakage and scores that vary.

    Raises `invalid_field` for bins outside 2 to 100, and what reading a dataset raises.
    """
    if not 2 <= bins <= 100:
        raise fail("invalid_field", f"calibration_bins must lie in 2 to 100, not {bins}", fields=["calibration_bins"])
    collector = Collector([])
    scan = Scan(path, collector)
    rows = [value for batch in scan for value in batch.values]
    held = [row for row in rows if str(row.get("split") or "") == split]
    others = {_normal(row.get("prompt")) for row in rows if str(row.get("split") or "") != split}
    answers, pairs, unscored = _read(held)
    findings = _findings(held, answers, pairs, unscored, collector.errors)
    leaked = [row for row in held if _normal(row.get("prompt")) in others and _normal(row.get("prompt"))]
    if leaked:
        findings.append(
            _found("eval_only_leakage", "fail", f"{len(leaked)} prompts of the split are in the other rows")
        )
    metrics = _metrics(answers, pairs, bins) if answers else {}
    if metrics and metrics["reward_variance"] == 0:
        findings.append(_found("zero_reward_variance", "fail", "every prediction is the same number"))
    metrics |= {
        "eval_only_leakage_count": len(leaked),
        "eval_only_leakage_rate": len(leaked) / len(held) if held else 0.0,
    }
    return {
        "schema_version": SCHEMA,
        "ok": not any(finding["level"] == "fail" for finding in findings),
        "path": str(path),
        "sha256": scan.sha256,
        "run_id": run_id,
        "split": split,
        "n_rows": len(held),
        "metrics": metrics,
        "slices": _slices(pairs),
        "findings": findings,
    }


def _read(rows: Sequence[dict[str, Any]]) -> tuple[list[Answer], list[Pair], int]:
    """(every scored answer, the pairs, rows without a prediction)."""
    answers, pairs, unscored = list[Answer](), list[Pair](), 0
    by_prompt: dict[str, list[Answer]] = defaultdict(list)
    for row in rows:
        if row.get("chosen") is not None and row.get("rejected") is not None:
            scores = [finite(row.get(f"predicted_{side}")) for side in ("chosen", "rejected")]
            if None in scores:
                unscored += 1
                continue
            sides = [
                _answer(row, row.get(side), float(value or 0.0), None)
                for side, value in zip(("chosen", "rejected"), scores, strict=True)
            ]
            answers += sides
            pairs.append(Pair(*sides))
            continue
        if row.get("predicted_steps") is not None:
            steps = _steps(row)
            unscored += not steps
            answers += steps
            by_prompt[f"{_normal(row.get('prompt'))}\0{row.get('example_id')}"] += steps
            continue
        predicted = next((finite(row[name]) for name in PREDICTIONS if row.get(name) is not None), None)
        if predicted is None:
            unscored += 1
            continue
        answer = _answer(row, row.get("response") or row.get("trajectory"), predicted, finite(row.get("reward")))
        answers.append(answer)
        by_prompt[_normal(row.get("prompt"))].append(answer)
    return answers, pairs + _within(by_prompt), unscored


def _answer(row: dict[str, Any], text: object, predicted: float, reward: float | None) -> Answer:
    cluster = row.get("source") or row.get("domain") or row.get("task_family") or row.get("example_id") or ""
    part = row.get("domain") or row.get("task_family") or ""
    return Answer(_normal(row.get("prompt")), str(text or ""), predicted, reward, str(cluster), str(part))


def _steps(row: dict[str, Any]) -> list[Answer]:
    """Every step of a process as an answer; nothing if one lacks its prediction."""
    steps, scores = row.get("steps"), row["predicted_steps"]
    if not isinstance(steps, list) or not isinstance(scores, list) or len(steps) != len(scores):
        return []
    found = []
    for step, predicted in zip(steps, map(finite, scores), strict=True):
        if predicted is None or not isinstance(step, dict):
            return []
        text = step.get("text") or step.get("content")
        found.append(_answer(row, text, predicted, finite(step.get("reward", step.get("label")))))
    return found


def _within(by_prompt: dict[str, list[Answer]]) -> list[Pair]:
    """Answers to one prompt whose rewards differ."""
    found = []
    for answers in by_prompt.values():
        judged = [a for a in answers if a.reward is not None]
        pairs = [
            Pair(*sorted((a, b), key=lambda x: -(x.reward or 0.0)))
            for i, a in enumerate(judged)
            for b in judged[i + 1 :]
            if a.reward != b.reward
        ]
        found += pairs[:MAX_PAIRS_PER_PROMPT]
    return found


def _findings(
    held: Sequence[Any], answers: Sequence[Answer], pairs: Sequence[Pair], unscored: int, unreadable: int
) -> list[dict[str, str]]:
    checks = (
        (not held, "no_records_for_split", "fail", "no row has this split"),
        (unreadable > 0, "unreadable_rows", "fail", f"{unreadable} rows cannot be read"),
        (unscored > 0, "missing_reward_model_predictions", "fail", f"{unscored} rows have no finite prediction"),
        (bool(held) and not pairs, "no_pairwise_comparisons", "fail", "there are no pairs to be right about"),
        (
            bool(answers) and not any(a.reward in (0.0, 1.0) for a in answers),
            "calibration_unavailable",
            "warn",
            "no answer has a reward of 0 or 1 to be calibrated against",
        ),
    )
    return [_found(code, level, text) for wrong, code, level, text in checks if wrong]


def _found(code: str, level: str, message: str) -> dict[str, str]:
    return {"code": code, "level": level, "message": message}


def _metrics(answers: Sequence[Answer], pairs: Sequence[Pair], bins: int) -> dict[str, Any]:
    labelled = [(_probability(a.predicted, answers), a.reward) for a in answers if a.reward in (0.0, 1.0)]
    points = [(p, float(y or 0.0)) for p, y in labelled]
    return {
        **_accuracy(pairs),
        "reward_margin": fmean(p.better.predicted - p.worse.predicted for p in pairs) if pairs else None,
        "calibration_error": calibration_error(points, bins) if points else None,
        "brier_score": fmean((p - y) ** 2 for p, y in points) if points else None,
        "length_bias": _correlation([float(len(a.text)) for a in answers], [a.predicted for a in answers]),
        "reward_variance": pvariance([a.predicted for a in answers]),
    }


def _accuracy(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Share of pairs in the right order, a tie counting half, with an interval by clusters (Wilson's with one cluster)."""
    hits = [_hit(pair) for pair in pairs]
    shorter = [_hit(pair) for pair in pairs if len(pair.better.text) < len(pair.worse.text)]
    if not hits:
        return {
            "heldout_pair_accuracy": None,
            "pair_accuracy_interval": None,
            "pair_count": 0,
            "accuracy_chosen_shorter": None,
        }
    clusters = [pair.better.cluster for pair in pairs]
    if len(set(clusters)) > 1:
        centred = stats.cluster_bootstrap([hit - 0.5 for hit in hits], clusters)
        interval = [max(0.0, centred.low + 0.5), min(1.0, centred.high + 0.5)]
    else:
        interval = list(stats.wilson(sum(hits), len(hits)))
    return {
        "heldout_pair_accuracy": fmean(hits),
        "pair_accuracy_interval": interval,
        "pair_count": len(hits),
        "accuracy_chosen_shorter": fmean(shorter) if shorter else None,
    }


def _hit(pair: Pair) -> float:
    if pair.better.predicted == pair.worse.predicted:
        return 0.5
    return float(pair.better.predicted > pair.worse.predicted)


def _probability(score: float, answers: Sequence[Answer]) -> float:
    """A prediction as a probability: itself where all lie in [0, 1], else through the logistic function."""
    if all(0 <= answer.predicted <= 1 for answer in answers):
        return score
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, score))))


def calibration_error(points: Sequence[tuple[float, float]], bins: int) -> float:
    """Expected calibration error over equal-width bins of (probability, 0 or 1) (Naeini et al. 2015, AAAI, eq. 3)."""
    groups: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for p, y in points:
        groups[min(bins - 1, int(p * bins))].append((p, y))
    gaps = (abs(fmean(y for _, y in group) - fmean(p for p, _ in group)) * len(group) for group in groups.values())
    return math.fsum(gaps) / len(points)


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r; None where one side does not vary."""
    if len(a) < 2 or pvariance(a) == 0 or pvariance(b) == 0:
        return None
    mean_a, mean_b = fmean(a), fmean(b)
    covariance = fmean((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return covariance / math.sqrt(pvariance(a) * pvariance(b))


def _slices(pairs: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    """Accuracy by domain and by which side is longer."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.better.slice:
            groups[f"domain:{pair.better.slice}"].append(pair)
        longer = len(pair.better.text) > len(pair.worse.text)
        groups["length:better_longer" if longer else "length:better_not_longer"].append(pair)
    return {name: {"n": len(group), "accuracy": fmean(map(_hit, group))} for name, group in sorted(groups.items())}


def _normal(value: object) -> str:
    return _SPACE.sub(" ", value).strip().casefold() if isinstance(value, str) else ""
