"""What is done with a recorded replay before an update: training log probabilities, advantages, summaries, scrubbing.

Owns the enrichment and its report, and the scoring of a replay with a local model. Does not own: record types
(`data.replay_records`), the arithmetic (`data.dppo`), the smoke bundle (`smoke`).
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.core.settings import Settings
from bashgym.data import dppo
from bashgym.data.replay_records import (
    SCHEMA,
    ReplayRecord,
    TrainPolicy,
    check_logprobs,
    logprobs_ready,
    read_records,
    write_records,
)
from bashgym.evals import scoring
from bashgym.evals.wire import decode

OnProgress = scoring.OnProgress


class TrainLogprobs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The log probabilities of one attempt's sampled tokens under the policy to be trained, turn after turn."""

    environment_id: str
    attempt_index: int
    token_logprobs: list[float]
    batch_id: str | None = None
    """Needed only where several batches of the file have the same attempt."""
    tokens: list[str] | None = None
    """Compared with the recorded tokens if given."""
    model: str = ""
    base_url: str = ""


class EnrichRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `dppo-replay/enrich`."""

    input_path: str
    output_path: str
    train_logprobs: list[TrainLogprobs]
    divergence: str = "binary_tv"
    threshold: float | None = None
    """Radius of the trust region; null is the default of the divergence."""


def enrich_file(body: Mapping[str, Any]) -> dict[str, Any]:
    """Reads, enriches and writes a replay; the input is left as it was unless it is the output. Returns the report."""
    request = decode(body, EnrichRequest)
    target = output_path(request.output_path)
    records = read_records(Path(request.input_path))
    report = enrich(records, request.train_logprobs, request.divergence, request.threshold)
    write_records(target, records)
    return {"input_path": request.input_path, "output_path": str(target), **report}


def enrich(
    records: Sequence[ReplayRecord],
    train_logprobs: Sequence[TrainLogprobs],
    divergence: str = "binary_tv",
    threshold: float | None = None,
) -> dict[str, Any]:
    """Adds training log probabilities and advantages to `records`, in place, once all of it is known to be right.

    Raises `replay_invalid`: an attempt that is missing, unknown or given twice; another number of tokens, other tokens;
    what is no log probability. `invalid_field` for a divergence or threshold that there is not.
    """
    radius = dppo.threshold_of(divergence, threshold)
    if not records:
        raise _invalid("the replay has no record", "input_path")
    given = _matched(records, train_logprobs)
    for record in records:
        _check(record, given[record.key])
    updates: list[dppo.TokenUpdate] = []
    offset = ready = 0
    groups = dppo.group_statistics((record.group, record.reward) for record in records)
    for record, advantage in zip(records, dppo.advantages(records), strict=True):
        found = given[record.key]
        behavior = record.behavior_logprobs()
        covered = [(t, b) for t, b in zip(found.token_logprobs, behavior, strict=True) if b is not None]
        updates += [dppo.judge_token(t, b, advantage, divergence, radius) for t, b in covered]
        record.train_policy = TrainPolicy(
            token_logprobs=found.token_logprobs, model=found.model, base_url=found.base_url
        )
        state, complete = record.optimizer, logprobs_ready(record)
        state.behavior_logprobs_ready = complete
        state.train_logprobs_ready = True
        state.train_logprob_replay_required = False
        state.train_logprob_tokens = state.dppo_token_count = len(behavior)
        state.dppo_token_offset, state.advantage = offset, advantage
        record.reward_group_std = groups[record.group][1]
        offset += len(behavior)
        ready += complete
    return {
        "schema_version": SCHEMA,
        "records": len(records),
        "groups": len(groups),
        "groups_without_contrast": sum(std <= dppo.ZERO_STD for _, std in groups.values()),
        "sampled_tokens": offset,
        "behavior_logprobs_ready": ready,
        "train_logprobs_ready": len(records),
        "telemetry": dppo.telemetry(updates, divergence=divergence, threshold=radius),
    }


def _matched(
    records: Sequence[ReplayRecord], train_logprobs: Sequence[TrainLogprobs]
) -> dict[tuple[str, str, int], TrainLogprobs]:
    """Record key -> its entry. Everything that does not match one to one is refused by name."""
    batches: dict[tuple[str, int], list[str]] = {}
    for record in records:
        batches.setdefault((record.environment_id, record.attempt_index), []).append(record.batch_id)
    found: dict[tuple[str, str, int], TrainLogprobs] = {}
    for entry in train_logprobs:
        known = batches.get((entry.environment_id, entry.attempt_index), [])
        name = f"environment {entry.environment_id!r} attempt {entry.attempt_index}"
        if entry.batch_id is None and len(known) > 1:
            raise _invalid(f"{name} is in {len(known)} batches: say which by batch_id", "train_logprobs.batch_id")
        batch = entry.batch_id if entry.batch_id is not None else next(iter(known), "")
        if batch not in known:
            raise _invalid(f"train_logprobs: the replay has no {name}", "train_logprobs")
        key = batch, entry.environment_id, entry.attempt_index
        if key in found:
            raise _invalid(f"train_logprobs: {name} is given twice", "train_logprobs")
        found[key] = entry
    missing = [record.key for record in records if record.key not in found]
    if missing:
        _, environment, attempt = missing[0]
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        text = f"train_logprobs: environment {environment!r} attempt {attempt}{more} is missing"
        raise _invalid(text, "train_logprobs")
    return found


def _check(record: ReplayRecord, entry: TrainLogprobs) -> None:
    name = f"environment {record.environment_id!r} attempt {record.attempt_index}"
    tokens = record.tokens()
    if not tokens:
        raise _invalid(f"{name} has no behaviour log probabilities: record it with capture_logprobs", "input_path")
    if len(entry.token_logprobs) != len(tokens):
        text = f"{name}: {len(entry.token_logprobs)} training log probabilities for {len(tokens)} sampled tokens"
        raise _invalid(text, "train_logprobs.token_logprobs")
    if entry.tokens is not None and entry.tokens != tokens:
        at = next((i for i, pair in enumerate(zip(entry.tokens, tokens, strict=False)) if pair[0] != pair[1]), 0)
        raise _invalid(f"{name}: the tokens differ from those recorded, the first at {at}", "train_logprobs.tokens")
    check_logprobs(entry.token_logprobs, f"{name}: token_logprobs")


def score_file(
    replay: Path,
    model: str,
    output: Path,
    settings: Settings,
    *,
    divergence: str = "binary_tv",
    threshold: float | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> dict[str, Any]:
    """Computes the training log probabilities of a replay with `model` (a name, folder, adapter or run) and enriches it.

    Raises as `enrich`, `models.catalog.resolve` and `scoring.run`; `replay_invalid` also if the recorded tokens are not
    those of the model's tokenizer and template. That is found out before any model is loaded.
    """
    from bashgym.models.catalog import resolve

    dppo.threshold_of(divergence, threshold)
    target = output_path(str(output))
    records = read_records(replay)
    ref = resolve(model, settings)
    found = train_logprobs(records, ref, settings, on_progress)
    report = enrich(records, found, divergence, threshold)
    write_records(target, records)
    facts = {"name": ref.name, "digest": ref.digest}
    return {"input_path": str(replay), "output_path": str(target), "model": facts, **report}


def train_logprobs(
    records: Sequence[ReplayRecord], ref: Any, settings: Settings, on_progress: OnProgress = lambda *_: None
) -> list[TrainLogprobs]:
    """One entry per record, computed by the scoring process with the model `ref` (a ModelRef)."""
    from bashgym.data.replay_tokens import CONTEXT, sequences
    from bashgym.data.tokens import TokenizerBundle
    from bashgym.inference.job import JobModel
    from bashgym.inference.replay_job import ReplayJob, SampledSequence, read_logprobs, write_replay_job

    bundle = TokenizerBundle.load(ref.path)
    rows: list[SampledSequence] = []
    places: list[tuple[int, list[int]]] = []
    for number, record in enumerate(records):
        for sequence in sequences(bundle, record, bundle.window):
            if bundle.window and len(sequence.input_ids) > bundle.window:
                text = f"{record.environment_id} attempt {record.attempt_index} has {len(sequence.input_ids)} tokens"
                raise _invalid(f"{text}, over the model's window of {bundle.window}", "model")
            sampled = [at for at, slot in enumerate(sequence.slots) if slot != CONTEXT]
            if sampled:
                places.append((number, [sequence.slots[at] for at in sampled]))
                rows.append(SampledSequence(len(rows), sequence.input_ids.tolist(), sampled))
    values: list[list[float]] = [[0.0] * len(record.tokens()) for record in records]
    if not rows:
        raise _invalid("the replay has no sampled token", "replay")
    with tempfile.TemporaryDirectory(prefix="bashgym-replay-") as name:
        folder = Path(name)
        source = JobModel(str(ref.path), str(ref.adapter_path) if ref.adapter_path else None)
        write_replay_job(folder, ReplayJob(model=source, parent_pid=os.getpid()), rows)
        scoring.run([folder], settings, on_progress)
        done = read_logprobs(folder)
    for index, (number, slots) in enumerate(places):
        for slot, value in zip(slots, done[index], strict=True):
            values[number][slot] = value
    return [
        TrainLogprobs(
            environment_id=record.environment_id,
            attempt_index=record.attempt_index,
            batch_id=record.batch_id,
            token_logprobs=found,
            model=ref.name,
        )
        for record, found in zip(records, values, strict=True)
    ]


def summarize(records: Sequence[ReplayRecord]) -> dict[str, Any]:
    """Counts over a replay: attempts, outcomes, groups, log-probability and world-model coverage."""
    groups = dppo.group_statistics((record.group, record.reward) for record in records)
    behavior = [record.behavior_logprobs() for record in records]
    tokens = sum(map(len, behavior))
    covered = sum(len(values) - values.count(None) for values in behavior)
    world = [record.world_model for record in records if record.world_model is not None]
    segments = [segment for payload in world for segment in payload.echo.segments]
    return {
        "schema_version": SCHEMA,
        "records": len(records),
        "batches": len({record.batch_id for record in records}),
        "environments": len({record.environment_id for record in records}),
        "groups": len(groups),
        "groups_without_contrast": sum(std <= dppo.ZERO_STD for _, std in groups.values()),
        "passed": sum(record.passed for record in records),
        "mean_reward": sum(record.reward for record in records) / len(records) if records else None,
        "verifier_status": dict(Counter(record.verifier_status for record in records)),
        "behavior_models": sorted({record.behavior_policy.model for record in records}),
        "sampled_tokens": tokens,
        "logprob_coverage": covered / tokens if tokens else 0.0,
        "behavior_logprobs_ready": sum(map(logprobs_ready, records)),
        "train_logprobs_ready": sum(record.train_policy is not None for record in records),
        "commands": sum(len(record.trajectory.commands) for record in records),
        "rwml_transitions": sum(len(payload.rwml_transitions) for payload in world),
        "echo_observations": sum(segment.role == "observation" for segment in segments),
    }


def output_path(name: str) -> Path:
    """Where a result may be written: a path whose folder is there. `directory_unwritable`."""
    path = Path(name).expanduser().absolute()
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise fail("directory_unwritable", f"{path} cannot be written", "Name a file in a folder that exists.")
    return path


def _invalid(message: str, field: str) -> BashGymError:
    return fail("replay_invalid", message, fields=[field])
