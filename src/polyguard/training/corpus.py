"""Builds the corpora, SFT conversations and GRPO prompts, from training scenarios and knowledge tables, and reports on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bashgym.core.canonical import digest_bytes, digest_file
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes, atomic_write_json, writable_dir
from polyguard import DISCLAIMER
from polyguard.env.scenarios import scenario
from polyguard.env.tasks import COUNT, TASKS, template_split
from polyguard.knowledge import load
from polyguard.training import sources, teacher

SFT, PROMPTS = (
    Path("data/processed/training_corpus_sft.jsonl"),
    Path("data/processed/training_corpus_grpo_prompts.jsonl"),
)
REPORT = Path("outputs/reports/training_corpus_report.json")
PROFILES = {"small": (200, 64), "massive": (20_000, 4_000)}
"""Profile -> (SFT rows, GRPO prompts)."""
LOCAL_SHARE = 0.2
"""Of the SFT rows, at most."""
Row = dict[str, Any]


class Wish(msgspec.Struct, kw_only=True):
    """What is asked for."""

    profile: str = "small"
    sft_rows: int | None = None
    grpo_prompts: int | None = None
    local: bool = False
    synthetic: bool = False
    hf: bool = False
    ddi_api: bool = False
    web: bool = False
    tasks: tuple[str, ...] = tuple(TASKS)
    seed: int = 42


def build(wish: Wish, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Writes both corpora and the report, and gives it. `invalid_field` where no source is asked for."""
    n_sft, n_prompts = PROFILES[wish.profile]
    n_sft = n_sft if wish.sft_rows is None else wish.sft_rows
    n_prompts = n_prompts if wish.grpo_prompts is None else wish.grpo_prompts
    if not (wish.local or wish.synthetic or wish.hf or wish.ddi_api or wish.web):
        raise fail("usage", "no source is asked for", "Give --with-synthetic, --with-local or both.", ["sources"])
    found: dict[str, dict[str, Any]] = {}
    rows = _more(wish, found, int(n_sft * LOCAL_SHARE) if wish.synthetic else n_sft)
    prompts: list[Row] = []
    if wish.synthetic:
        lessons, prompts = _synthetic(wish, n_sft - len(rows), n_prompts, say)
        rows += lessons
        found["synthetic"] = _source(True, len(lessons))
    if not rows:
        raise fail("dataset_empty", "no source gave a row", "Add --with-synthetic.", ["sources"])
    order = np.random.Generator(np.random.PCG64(wish.seed)).permutation(len(rows))
    _write(SFT, [rows[at] for at in order])
    _write(PROMPTS, prompts)
    report = _report(wish, found, rows, prompts)
    writable_dir(REPORT.parent)
    atomic_write_json(REPORT, report)
    return report


def _more(wish: Wish, found: dict[str, dict[str, Any]], limit: int) -> list[Row]:
    """Rows of the other sources; what is not there is recorded as skipped, with the reason."""
    rows: list[Row] = []
    for name, asked, read in (
        ("local", wish.local, sources.local),
        ("hf", wish.hf, sources.hugging_face),
        ("ddi_api", wish.ddi_api, sources.openfda),
        ("web", wish.web, sources.web),
    ):
        if not asked:
            found[name] = _source(False, 0)
            continue
        made, reason = read(limit, wish.seed)
        rows += made
        found[name] = _source(True, len(made), reason)
    return rows


def _source(requested: bool, count: int, reason: str | None = None) -> dict[str, Any]:
    return {"requested": requested, "used": count > 0, "count": count, "skipped_reason": reason}


def _synthetic(wish: Wish, n_sft: int, n_prompts: int, say: Callable[[str], None]) -> tuple[list[Row], list[Row]]:
    """(conversations, prompts) from training scenarios that do not overlap: prompts come from the end of the split."""
    rng = np.random.Generator(np.random.PCG64(wish.seed))
    rows: list[Row] = []
    for state in _states(wish, rng, 0):
        if len(rows) >= n_sft:
            break
        rows.append(_conversation(state, len(rows)))
        if len(rows) % 2000 == 0:
            say(f"corpus: {len(rows)} of {n_sft} SFT rows")
    prompts: list[Row] = []
    for state in _states(wish, rng, COUNT["train"] // 2):
        if len(prompts) >= n_prompts:
            break
        prompts.append(_prompt(state))
    return rows, prompts


def _states(wish: Wish, rng: np.random.Generator, start: int) -> Iterator[teacher.State]:
    seen: set[str] = set()
    half = COUNT["train"] // 2
    for index in range(start, start + half):
        for task in wish.tasks:
            for state in teacher.lesson(scenario(task, "train", index), rng):
                key = digest_bytes(msgspec.json.encode(state.messages))
                if key not in seen:
                    seen.add(key)
                    yield state


def _place(state: teacher.State) -> Row:
    made = state.scenario
    return {
        "task_id": made.task.id,
        "split": made.split,
        "index": made.index,
        "seed": made.seed,
        "history": state.history,
    }


def _conversation(state: teacher.State, number: int) -> Row:
    turns = [*state.messages, {"role": "assistant", "content": state.answer}]
    return {
        "id": f"synthetic-{number:06d}",
        **_place(state),
        "source": "synthetic",
        "messages": turns,
        "provenance": "simulation",
    }


def _prompt(state: teacher.State) -> Row:
    kind = state.scenario.task
    return {
        "prompt": state.messages,
        **_place(state),
        "difficulty": kind.difficulty,
        "sub_environment": kind.sub_environment,
    }


def _write(path: Path, rows: list[Row]) -> None:
    writable_dir(path.parent)
    atomic_write_bytes(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def overlap(rows: list[Row]) -> int:
    """Rows of another split than train, or made from a template that training may not have."""
    found = 0
    for row in rows:
        if "task_id" not in row or row.get("source") == "local":
            continue
        names = scenario(row["task_id"], row["split"], row["index"]).templates
        pairs = [name.partition(":")[2] for name in names if "+" in name]
        found += row["split"] != "train" or any(template_split(pair.partition("@")[0]) != "train" for pair in pairs)
    return found


def _report(wish: Wish, found: dict[str, dict[str, Any]], rows: list[Row], prompts: list[Row]) -> dict[str, Any]:
    played = [row for row in (*rows, *prompts) if "task_id" in row]
    return {
        "schema_version": "polyguard.corpus_report.v1",
        "disclaimer": DISCLAIMER,
        "profile": wish.profile,
        "sources": found,
        "sft_examples": len(rows),
        "grpo_prompts": len(prompts),
        "by_task": dict(sorted(Counter(row["task_id"] for row in played).items())),
        "by_difficulty": dict(sorted(Counter(row["task_id"].partition("/")[0] for row in played).items())),
        "holdout_overlap": overlap(played),
        "sha256": {str(path): digest_file(path) for path in (SFT, PROMPTS)},
        "seed": wish.seed,
        "knowledge_version": load().version,
    }
