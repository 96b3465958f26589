"""Which groups of rollouts have contrast, and the replay file that a DPPO update reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.canonical import digest_file
from bashgym.data.replay_records import (
    SCHEMA,
    Echo,
    OptimizerState,
    ReplayRecord,
    Segment,
    Trajectory,
    Transition,
    WorldModel,
    behavior_policy,
    logprobs_ready,
    write_records,
)
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals.rollout_protocol import TOOLS
from bashgym.evals.rollouts import RolloutRecord
from bashgym.training.groups import Tally, population_std

if TYPE_CHECKING:
    from bashgym.evals.model_rollouts import ModelRolloutRequest


def sampling_report(records: Sequence[RolloutRecord], request: ModelRolloutRequest) -> dict[str, Any]:
    """Walks the groups in order and keeps those with contrast until the target is reached; says what was dropped.

    Without filter and active sampling every group is `selected`. pass@k is never computed over a selection.
    """
    groups: dict[str, list[float]] = {}
    for record in records:
        rewards = groups.setdefault(record.attempt.environment_id, [])
        if record.attempt.passed is not None:
            rewards.append(record.attempt.reward)
    target = request.target_prompt_groups or len(groups)
    if not (request.filter_zero_std_groups or request.active_sampling):
        return {"selected": list(groups), "reward_std": {name: population_std(r) for name, r in groups.items()}}
    tally, selected = Tally(requested=target), list[str]()
    for name, rewards in groups.items():
        if len(selected) >= target:
            break
        if tally.add(rewards):
            selected.append(name)
    return {
        "selected": selected,
        "reward_std": {name: population_std(rewards) for name, rewards in groups.items()},
        "active_sampling_refills": max(0, tally.effective + tally.dropped - target),
        "zero_std_groups_dropped": tally.dropped,
        "all_zero_groups_dropped": tally.all_zero,
        "all_one_groups_dropped": tally.all_one,
        "effective_prompt_groups": tally.effective,
        "requested_prompt_groups": target,
        "candidate_prompt_groups": len(groups),
        "maintained_batch": len(selected) >= target,
    }


def write_replay(
    request: ModelRolloutRequest,
    environments: Sequence[EnvironmentSpec],
    records: Sequence[RolloutRecord],
    selected: Sequence[str],
    digest: str,
) -> dict[str, Any] | None:
    """{report, file} of the replay, or None if none was asked for. Attempts that were not observed are left out."""
    if not request.dppo_replay_output_path:
        return None
    path = Path(request.dppo_replay_output_path).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    specs = {spec.id: spec for spec in environments}
    stds: dict[str, float] = sampling_report(records, request)["reward_std"]
    seen = [record for record in records if record.attempt.passed is not None]
    lines = [_record(record, specs[record.attempt.environment_id], request, digest=digest) for record in seen]
    for line in lines:
        line.active_sampling_selected = line.environment_id in selected
        line.reward_group_std = stds[line.environment_id]
    write_records(path, lines)
    ready = sum(line.optimizer.behavior_logprobs_ready for line in lines)
    report = {
        "n_records": len(lines),
        "n_selected": sum(line.active_sampling_selected for line in lines),
        "n_unobserved": len(records) - len(seen),
        "behavior_logprobs_ready": ready,
        "logprob_coverage": ready / len(lines) if lines else 0.0,
        "warnings": _warnings(request, ready, len(lines)),
    }
    return {"report": report, "file": {"path": str(path), "schema_version": SCHEMA, "sha256": digest_file(path)}}


def _warnings(request: ModelRolloutRequest, ready: int, n: int) -> list[str]:
    if ready == n:
        return []
    if not request.capture_logprobs:
        return ["capture_logprobs is off: the records hold no behaviour log probabilities"]
    return [f"the endpoint gave no log probabilities for {n - ready} of {n} records"]


def _record(record: RolloutRecord, spec: EnvironmentSpec, request: ModelRolloutRequest, *, digest: str) -> ReplayRecord:
    steps = [step for step in record.steps if step.command]
    made = ReplayRecord(
        batch_id=digest[:16],
        environment_id=spec.id,
        attempt_index=record.attempt.attempt_index,
        prompt=spec.instruction,
        environment=spec.to_dict(),
        reward=record.attempt.reward,
        passed=bool(record.attempt.passed),
        verifier_status=record.attempt.verifier_status,
        trajectory=Trajectory(
            messages=record.messages,
            tools=TOOLS if request.use_tool_calling else None,
            commands=[step.command for step in steps],
            observations=[step.observation for step in steps],
            verifier_observation=record.verifier_detail,
        ),
        behavior_policy=behavior_policy(
            record.turns,
            model=request.endpoint.model,
            base_url=request.endpoint.base_url,
            temperature=request.temperature,
        ),
        world_model=_world_model(spec, steps, request) if request.include_world_model_replay else None,
    )
    made.optimizer = OptimizerState(behavior_logprobs_ready=logprobs_ready(made))
    return made


def _world_model(spec: EnvironmentSpec, steps: Sequence[Any], request: ModelRolloutRequest) -> WorldModel:
    """What RWML and ECHO read: each command with what it showed, and what stood before it."""
    pairs = [{"action": step.command, "state": step.observation} for step in steps]
    window = request.rwml_history_window
    transitions = [
        Transition(
            instruction=spec.instruction,
            prior=pairs[max(0, i - window) : i],
            action=pair["action"],
            next_state=pair["state"],
        )
        for i, pair in enumerate(pairs)
    ]
    segments = [
        segment
        for pair in pairs
        for segment in (Segment(role="action", text=pair["action"]), Segment(role="observation", text=pair["state"]))
    ]
    return WorldModel(
        rwml_transitions=transitions,
        echo=Echo(
            segments=segments,
            n_action_chars=sum(len(pair["action"]) for pair in pairs),
            n_observation_chars=sum(len(pair["state"]) for pair in pairs),
        ),
    )
