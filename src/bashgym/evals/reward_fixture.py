"""The reward-model fixture: a bag-of-words logistic scorer. It proves that the path from examples to evaluation works, and
nothing about quality; every file that it writes says `smoke`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes, atomic_write_json, writable_dir
from bashgym.data.reward_examples import RewardExample, iter_examples, validate
from bashgym.evals.reward_eval import evaluate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SCHEMA = "bashgym.reward_model_fixture_train.v1"
_WORD = re.compile(r"\w+")


def train(
    path: Path,
    output: Path,
    *,
    train_split: str = "train",
    eval_split: str = "eval",
    epochs: int = 8,
    learning_rate: float = 0.5,
    l2: float = 0.001,
    max_features: int = 2048,
    bins: int = 10,
) -> dict[str, Any]:
    """Trains, predicts the eval split, evaluates, and writes the five files. `reward_rows_invalid` without rows for both."""
    _check(epochs, learning_rate, l2, max_features)
    checked = validate(path)
    examples = [e for e in iter_examples(path) if e.kind != "process"]
    fitted = [e for e in examples if e.split == train_split]
    held = [e for e in examples if e.split == eval_split]
    if not fitted or not held:
        message = f"{path}: {len(fitted)} rows of split {train_split!r} and {len(held)} of {eval_split!r} can be used"
        raise fail(
            "reward_rows_invalid", message, "Give rows a `split`, or name other splits.", ["train_split", "eval_split"]
        )
    vocabulary = _vocabulary(fitted, max_features)
    weights, curve = _fit(fitted, vocabulary, epochs=epochs, learning_rate=learning_rate, l2=l2)
    folder = writable_dir(output)
    predictions = [_predicted(e, weights, vocabulary) for e in held]
    _lines(
        folder / "reward_predictions.jsonl",
        [*predictions, *({"prompt": e.prompt, "split": train_split} for e in fitted)],
    )
    _lines(folder / "metrics.jsonl", curve)
    words = {word: float(weights[i]) for word, i in vocabulary.items()}
    atomic_write_json(
        folder / "reward_model_fixture.json", {"smoke": True, "bias": float(weights[-1]), "weights": words}
    )
    report = evaluate(folder / "reward_predictions.jsonl", split=eval_split, bins=bins)
    atomic_write_json(folder / "reward_eval.json", {**report, "smoke": True})
    names = ("reward_model_fixture.json", "metrics.jsonl", "reward_predictions.jsonl", "reward_eval.json")
    document = {
        "schema_version": SCHEMA,
        "ok": checked["ok"] and report["ok"],
        "smoke": True,
        "note": "a bag-of-words scorer: it proves the path and says nothing about quality",
        "n_train": len(fitted),
        "n_eval": len(held),
        "examples": {key: checked[key] for key in ("ok", "sha256", "total_records", "valid_records", "fail_count")},
        "metrics": report["metrics"],
        "findings": [*checked["findings"], *report["findings"]],
        "files": [str(folder / name) for name in names],
    }
    atomic_write_json(folder / "reward_model_fixture_report.json", document)
    return document


def _check(epochs: int, learning_rate: float, l2: float, max_features: int) -> None:
    checks = (
        ("epochs", 1 <= epochs <= 1000, "1 to 1000"),
        ("learning_rate", 0 < learning_rate <= 100, "above 0, at most 100"),
        ("l2", 0 <= l2 <= 10, "0 to 10"),
        ("max_features", 1 <= max_features <= 1_000_000, "1 to 1000000"),
    )
    for name, holds, bounds in checks:
        if not holds:
            raise fail("invalid_field", f"{name} must lie in {bounds}", fields=[name])


def _vocabulary(examples: Sequence[RewardExample], most: int) -> dict[str, int]:
    counts = Counter(word for e in examples for text in _texts(e) for word in set(_words(text)))
    return {word: i for i, (word, _) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most])}


def _texts(example: RewardExample) -> tuple[str, ...]:
    return (example.chosen, example.rejected) if example.kind == "preference" else (example.response,)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _features(text: str, vocabulary: dict[str, int]) -> Floats:
    import numpy as np

    row = np.zeros(len(vocabulary) + 1)
    for word in _words(text):
        if word in vocabulary:
            row[vocabulary[word]] = 1.0
    row[-1] = 1.0
    return row


def _fit(
    examples: Sequence[RewardExample], vocabulary: dict[str, int], *, epochs: int, learning_rate: float, l2: float
) -> tuple[Floats, list[dict[str, Any]]]:
    """Logistic regression by gradient descent: on the difference of a pair's features, or on an answer's reward in [0, 1]."""
    import numpy as np

    rewards = [e.reward for e in examples if e.kind == "outcome"]
    low, high = (min(rewards), max(rewards)) if rewards else (0.0, 1.0)
    rows, targets = [], []
    for e in examples:
        if e.kind == "preference":
            rows.append(_features(e.chosen, vocabulary) - _features(e.rejected, vocabulary))
            targets.append(1.0)
        else:
            rows.append(_features(e.response, vocabulary))
            targets.append((e.reward - low) / (high - low) if high > low else e.reward)
    x, y = np.stack(rows), np.array(targets)
    weights, curve = np.zeros(x.shape[1]), []
    for epoch in range(epochs):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -60, 60)))
        loss = float(-np.mean(y * np.log(p + 1e-12) + (1 - y) * np.log(1 - p + 1e-12)))
        weights -= learning_rate * (x.T @ (p - y) / len(y) + l2 * weights)
        curve.append({"step": epoch, "loss": loss, "smoke": True})
    return weights, curve


def _predicted(example: RewardExample, weights: Floats, vocabulary: dict[str, int]) -> dict[str, Any]:
    def score(text: str) -> float:
        return float(_features(text, vocabulary) @ weights)

    row: dict[str, Any] = {"example_id": example.example_id, "prompt": example.prompt, "split": example.split}
    if example.kind == "preference":
        scores = {"predicted_chosen": score(example.chosen), "predicted_rejected": score(example.rejected)}
        return {**row, "chosen": example.chosen, "rejected": example.rejected, **scores}
    return {**row, "response": example.response, "reward": example.reward, "predicted_reward": score(example.response)}


def _lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    atomic_write_bytes(
        path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogatepass")
    )
