"""What a reward model says of rows: predictions beside them, as `reward_eval` reads them. Scored in the scoring process."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_bytes, read_object
from bashgym.core.settings import Settings
from bashgym.data.encode import RowProblem
from bashgym.data.findings import Collector
from bashgym.data.prompts import wrapped
from bashgym.data.readers import Scan
from bashgym.data.reward_rows import HEADS, RewardRow, read_row, sequences
from bashgym.evals import scoring
from bashgym.evals.replay import output_path
from bashgym.models.catalog import ModelRef

SCHEMA = "bashgym.reward_model_score.v1"


def score_file(
    model: str,
    source: Path,
    target: Path,
    settings: Settings,
    *,
    split: str = "",
    on_progress: scoring.OnProgress = lambda *_: None,
) -> dict[str, Any]:
    """Writes every row of `source` to `target`, those of `split` (all if empty) with what the model says of them.

    A pair gets predicted_chosen and predicted_rejected, an answer predicted_reward, a process predicted_steps and the
    lowest of them as predicted_reward (Lightman et al. 2023 rank solutions by minimum or product). They are scores, or
    probabilities where the model was trained with reward_loss bce. Rows need no label. Raises `unsupported_model` for
    what is no reward model, `reward_rows_invalid` for a row that it cannot score, and what `scoring.run` raises.
    """
    from bashgym.models.catalog import resolve

    where = output_path(str(target))
    ref = resolve(model, settings, scorers=True)
    if ref.task == "CAUSAL_LM":
        raise fail(
            "unsupported_model", f"{model} is no reward model", "Train one with strategy reward_model.", ["model"]
        )
    learnt = _learnt(ref)
    rows = list(_rows(source, split, learnt))
    found = _scores(ref, [made for _, made in rows if made is not None], settings, learnt, on_progress)
    lines = [{**value, **(_predictions(found.pop(0), learnt) if made is not None else {})} for value, made in rows]
    atomic_write_bytes(where, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return {
        "schema_version": SCHEMA,
        "ok": True,
        "model": ref.name,
        "model_digest": ref.digest,
        "kind": learnt["kind"],
        "loss": learnt["loss"],
        "input": str(source),
        "output": str(where),
        "split": split,
        "rows": len(rows),
        "scored": sum(made is not None for _, made in rows),
    }


def _learnt(ref: ModelRef) -> dict[str, Any]:
    """reward.json of the run that made the model; for a folder from elsewhere what its head allows."""
    run = (ref.adapter_path or ref.path).parent
    if (run / "reward.json").is_file():
        request = read_object(run / "request.json")
        return {**read_object(run / "reward.json"), **{k: request.get(k) for k in ("wrap_prompts", "max_seq_length")}}
    kind = "process" if ref.task == HEADS["process"] else ""
    return {"kind": kind, "loss": "unknown", "wrap_prompts": False, "max_seq_length": None}


def _rows(source: Path, split: str, learnt: dict[str, Any]) -> Iterator[tuple[dict[str, Any], RewardRow | None]]:
    """Every row, and what is scored of those that are meant. The first that cannot be scored raises."""
    collector = Collector([])
    for batch in Scan(source, collector):
        for number, value in zip(batch.numbers, batch.values, strict=True):
            if split and value.get("split") != split:
                yield value, None
                continue
            watch = Collector([])
            made = read_row(number, _labelled(number, value), watch)
            if made is None:
                raise _refused(number, watch.issues[0].message)
            process = made.example.kind == "process"
            if process != (learnt["kind"] == "process"):
                raise _refused(
                    number, f"the model scores {learnt['kind'] or 'whole answers'}, and this row is another kind"
                )
            yield value, RewardRow(made.example, wrapped(made.row)) if learnt["wrap_prompts"] else made
    if collector.errors:
        raise _refused(collector.issues[0].line, collector.issues[0].message)


def _labelled(number: int, value: dict[str, Any]) -> dict[str, Any]:
    """The row with stand-ins for what scoring does not need: who it is, and what it is worth."""
    steps = value.get("steps")
    if isinstance(steps, list):
        steps = [{"reward": 0, **step} if isinstance(step, dict) else step for step in steps]
    kind = "process_reward" if steps else "preference_reward" if value.get("rejected") else "outcome_reward"
    filled = {"example_id": f"row {number}", "reward_type": kind, "reward": 0, **value}
    return {**filled, "steps": steps} if steps else filled


def _scores(
    ref: ModelRef,
    rows: list[RewardRow],
    settings: Settings,
    learnt: dict[str, Any],
    on_progress: scoring.OnProgress,
) -> list[list[list[float]]]:
    """Per row and sequence, the score at each of its places."""
    from bashgym.data.tokens import TokenizerBundle
    from bashgym.inference.job import JobModel
    from bashgym.inference.replay_job import ReplayJob, SampledSequence, read_logprobs, write_replay_job

    bundle = TokenizerBundle.load(ref.path)
    length = int(learnt["max_seq_length"] or bundle.window or 1 << 20)

    def refuse(problem: RowProblem) -> None:
        raise _refused(problem.row, problem.message)

    made: dict[int, list[Any]] = {}
    for kind in {row.example.kind for row in rows}:
        part = [row for row in rows if row.example.kind == kind]
        for row, encoded in sequences(bundle, part, kind=kind, max_length=length, on_problem=refuse):
            made[row.example.number] = encoded
    flat = [one for row in rows for one in made[row.example.number]]
    if not flat:
        raise fail("reward_rows_invalid", "no row has this split", "Leave --split out to score all rows.", ["split"])
    with tempfile.TemporaryDirectory(prefix="bashgym-reward-") as name:
        folder = Path(name)
        source = JobModel(str(ref.path), str(ref.adapter_path) if ref.adapter_path else None)
        asked = [SampledSequence(index, one.input_ids, one.ends) for index, one in enumerate(flat)]
        write_replay_job(folder, ReplayJob(model=source, task=ref.task, parent_pid=os.getpid()), asked)
        scoring.run([folder], settings, on_progress)
        done = read_logprobs(folder)
    scores = iter([done[index] for index in range(len(flat))])
    return [[next(scores) for _ in made[row.example.number]] for row in rows]


def _predictions(scores: list[list[float]], learnt: dict[str, Any]) -> dict[str, Any]:
    if learnt["loss"] == "bce":
        scores = [[1 / (1 + math.exp(-max(-60.0, min(60.0, score)))) for score in one] for one in scores]
    if len(scores) == 2:
        return {"predicted_chosen": scores[0][0], "predicted_rejected": scores[1][0]}
    steps = {"predicted_steps": scores[0]} if learnt["kind"] == "process" else {}
    return {**steps, "predicted_reward": min(scores[0])}


def _refused(number: int, why: str) -> BashGymError:
    return fail("reward_rows_invalid", f"row {number} cannot be scored: {why}", fields=["input"])
