"""`bashgym.dppo_replay.v1`: one recorded attempt with the log probabilities of the policy that acted.

Owns the wire types, their checks and reading and writing files of them. Does not own: the arithmetic on them (`dppo`),
tokenisation (`replay_tokens`), who records them (rollouts).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_bytes

SCHEMA = "bashgym.dppo_replay.v1"
MAX_LINE_BYTES = 64 << 20
ROUNDING = 1e-6
"""A log probability may exceed 0 by this much, and counts as 0: engines compute in half precision."""


class TurnLogprobs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was sampled for one assistant message. The three lists have one entry per sampled token."""

    turn: int
    """Index in `trajectory.messages` of the assistant message; the prompt is what stands before it."""
    tokens: list[str]
    logprobs: list[float | None]
    """Natural logarithms under the policy that sampled; null where the endpoint gave none, and then it is not trained."""
    token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    """Length of the prompt as the endpoint counted it, to check the template by."""


class Trajectory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What happened, as messages and as commands with what they showed."""

    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None
    """The tool definitions that the model was shown."""
    commands: list[str] = []
    observations: list[str] = []
    verifier_observation: str = ""


class BehaviorPolicy(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who acted, and how likely its tokens were to it."""

    model: str = ""
    base_url: str = ""
    temperature: float | None = None
    response_logprobs: list[TurnLogprobs] = []
    behavior_logprob_tokens: int = 0
    """Tokens with a log probability, over all turns."""
    behavior_logprob_sum: float = 0.0
    behavior_mean_logprob: float | None = None


class TrainPolicy(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How likely the same tokens are to the policy that is to be trained, turn after turn in one list."""

    token_logprobs: list[float]
    model: str = ""
    base_url: str = ""


class OptimizerState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How far the record is on its way to an update."""

    behavior_logprobs_ready: bool = False
    train_logprobs_ready: bool = False
    train_logprob_replay_required: bool = True
    train_logprob_tokens: int = 0
    advantage: float | None = None
    """reward - mean reward of the group."""
    dppo_token_offset: int | None = None
    """Where the record's tokens begin in the file's stream of sampled tokens."""
    dppo_token_count: int | None = None


class Transition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """<instruction, prior, action, next state> of RWML."""

    instruction: str
    prior: list[dict[str, str]] = []
    """Earlier {action, state} pairs, oldest first."""
    action: str
    next_state: str


class Segment(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A stretch of the transcript."""

    role: str
    """action or observation."""
    text: str


class Echo(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What ECHO predicts."""

    segments: list[Segment] = []
    n_action_chars: int = 0
    n_observation_chars: int = 0
    note: str = ""


class WorldModel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Payload of the world-model objectives."""

    rwml_transitions: list[Transition] = []
    echo: Echo = msgspec.field(default_factory=Echo)


class ReplayRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One line of a replay file."""

    schema_version: str = SCHEMA
    batch_id: str
    environment_id: str
    attempt_index: int
    prompt: str
    environment: dict[str, Any] = {}
    """The EnvironmentSpec, or empty."""
    reward: float
    passed: bool
    verifier_status: str
    active_sampling_selected: bool = True
    reward_group_std: float | None = None
    trajectory: Trajectory = msgspec.field(default_factory=Trajectory)
    behavior_policy: BehaviorPolicy
    optimizer: OptimizerState = msgspec.field(default_factory=OptimizerState)
    train_policy: TrainPolicy | None = None
    world_model: WorldModel | None = None
    metadata: dict[str, Any] = {}

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes the record unique in its file."""
        return self.batch_id, self.environment_id, self.attempt_index

    @property
    def group(self) -> tuple[str, str]:
        """Attempts that are compared with each other."""
        return self.batch_id, self.environment_id

    def behavior_logprobs(self) -> list[float | None]:
        """One entry per sampled token, turn after turn."""
        return [value for turn in self.behavior_policy.response_logprobs for value in turn.logprobs]

    def tokens(self) -> list[str]:
        """The sampled tokens, turn after turn."""
        return [token for turn in self.behavior_policy.response_logprobs for token in turn.tokens]


def behavior_policy(
    turns: list[TurnLogprobs], *, model: str = "", base_url: str = "", temperature: float | None = None
) -> BehaviorPolicy:
    """A BehaviorPolicy with its sums."""
    known = [value for turn in turns for value in turn.logprobs if value is not None]
    total = math.fsum(known)
    return BehaviorPolicy(
        model=model,
        base_url=base_url,
        temperature=temperature,
        response_logprobs=turns,
        behavior_logprob_tokens=len(known),
        behavior_logprob_sum=total,
        behavior_mean_logprob=total / len(known) if known else None,
    )


def logprobs_ready(record: ReplayRecord) -> bool:
    """Whether there are sampled tokens and every one has a behaviour log probability."""
    values = record.behavior_logprobs()
    return bool(values) and None not in values


def parse_record(value: object) -> ReplayRecord:
    """One decoded line. `replay_invalid`, naming the field, for anything that is not acceptable."""
    if isinstance(value, dict) and value.get("schema_version", SCHEMA) != SCHEMA:
        raise _invalid(f"schema_version is {str(value['schema_version'])[:80]!r}, not {SCHEMA}", "schema_version")
    try:
        record = msgspec.convert(value, ReplayRecord)
    except msgspec.ValidationError as error:
        text = str(error)
        field = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else text.partition("`")[2].partition("`")[0]
        raise _invalid(text, field or "record") from error
    _check(record)
    return record


def _check(record: ReplayRecord) -> None:
    numbers = {"reward": record.reward, "optimizer.advantage": record.optimizer.advantage or 0.0}
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise _invalid(f"{name} is {number}", name)
    if record.attempt_index < 0:
        raise _invalid("attempt_index is negative", "attempt_index")
    last, place = -1, "behavior_policy.response_logprobs"
    messages = record.trajectory.messages
    for turn in record.behavior_policy.response_logprobs:
        if not last < turn.turn < len(messages) or messages[turn.turn].get("role") != "assistant":
            raise _invalid(f"turn {turn.turn} is no further assistant message of trajectory.messages", f"{place}.turn")
        last = turn.turn
        lengths = {len(turn.tokens), len(turn.logprobs), len(turn.token_ids or turn.tokens)}
        if len(lengths) > 1:
            raise _invalid(f"turn {turn.turn}: tokens, logprobs and token_ids differ in length", place)
        check_logprobs([value for value in turn.logprobs if value is not None], f"{place}.logprobs")
    if record.train_policy is not None:
        check_logprobs(record.train_policy.token_logprobs, "train_policy.token_logprobs")
        given, sampled = len(record.train_policy.token_logprobs), len(record.tokens())
        if given != sampled:
            raise _invalid(f"{given} training log probabilities for {sampled} sampled tokens", "train_policy")


def check_logprobs(values: Iterable[float], field: str) -> None:
    """`replay_invalid` for NaN, infinity and what is above 0."""
    for value in values:
        if not math.isfinite(value) or value > ROUNDING:
            raise _invalid(f"{field}: {value} is no log probability", field)


def _invalid(message: str, field: str) -> BashGymError:
    return fail("replay_invalid", message, fields=[field])


def iter_records(path: Path) -> Iterator[ReplayRecord]:
    """The records of a replay, JSONL or {"records": [...]}. `replay_invalid` names line and field; `file_missing`."""
    if not path.is_file():
        raise fail("file_missing", f"{path} does not exist", fields=["replay"])
    seen: dict[tuple[str, str, int], int] = {}
    for number, value in _values(path):
        try:
            record = parse_record(value)
        except BashGymError as error:
            raise fail("replay_invalid", f"{path} row {number}: {error.message}", fields=error.fields) from error
        if record.key in seen:
            message = (
                f"{path} row {number} repeats (batch, environment, attempt) {record.key} of row {seen[record.key]}"
            )
            raise fail("replay_invalid", message, fields=["attempt_index"])
        seen[record.key] = number
        yield record


def _values(path: Path) -> Iterator[tuple[int, object]]:
    try:
        if path.suffix == ".json":
            document = msgspec.json.decode(path.read_bytes())
            yield from enumerate(document["records"] if isinstance(document, dict) else document, 1)
            return
        with path.open("rb") as handle:
            for number, line in enumerate(iter(lambda: handle.readline(MAX_LINE_BYTES), b""), 1):
                if len(line) == MAX_LINE_BYTES:
                    raise _invalid(f"row {number} has more than {MAX_LINE_BYTES >> 20} MiB", "replay")
                if line.strip():
                    yield number, msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
        raise fail("replay_invalid", f"{path} is not a file of JSON records: {error}", fields=["replay"]) from error


def read_records(path: Path) -> list[ReplayRecord]:
    """`iter_records` as a list."""
    return list(iter_records(path))


def write_records(path: Path, records: Iterable[ReplayRecord]) -> None:
    """The whole file at once, atomically, as JSONL."""
    atomic_write_bytes(path, b"".join(msgspec.json.encode(record) + b"\n" for record in records))
