"""From a replay record to token sequences: what the policy saw, what it sampled, and whether that can be told for certain.

A sampled turn is scored and trained as its recorded tokens after its prompt as the chat template writes it. Where the next
prompt begins with what is there already, the turns share one sequence; where a template rewrites history (it drops earlier
reasoning, say), every turn stands in a sequence of its own, because that is what the policy saw.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bashgym.core.errors import BashGymError, fail
from bashgym.data.replay_records import ReplayRecord, TurnLogprobs

if TYPE_CHECKING:
    from bashgym.data.tokens import TokenizerBundle

_LOST = "\ufffd"
"""What a decoder writes for bytes that are no whole character."""
CONTEXT = -1


@dataclass
class Sequence:
    """Tokens of one forward pass."""

    input_ids: array[int] = field(default_factory=lambda: array("i"))
    slots: array[int] = field(default_factory=lambda: array("i"))
    """Per token: its place among the record's sampled tokens, or `CONTEXT`."""

    def add(self, context: list[int], sampled: list[int], start: int) -> None:
        """Appends what was read and then what was sampled, whose first token has place `start`."""
        self.input_ids.extend([*context, *sampled])
        self.slots.extend([CONTEXT] * len(context))
        self.slots.extend(range(start, start + len(sampled)))

    @property
    def sampled(self) -> int:
        """Sampled tokens."""
        return len(self.slots) - self.slots.count(CONTEXT)


def sequences(bundle: TokenizerBundle, record: ReplayRecord, max_length: int | None = None) -> list[Sequence]:
    """The sequences of a record, turns in order. One may be longer than `max_length`: turns are not joined beyond it.

    `replay_invalid` if the record's tokens are not those of this tokenizer and template.
    """
    found: list[Sequence] = []
    start = 0
    for turn in record.behavior_policy.response_logprobs:
        prompt, sampled = _prompt_ids(bundle, record, turn), _sampled_ids(bundle, record, turn)
        last = found[-1] if found else None
        joined = last is not None and prompt[: len(last.input_ids)] == last.input_ids.tolist()
        if last is None or not joined or (max_length is not None and len(prompt) + len(sampled) > max_length):
            last = Sequence()
            found.append(last)
        last.add(prompt[len(last.input_ids) :], sampled, start)
        start += len(sampled)
    return found


def _prompt_ids(bundle: TokenizerBundle, record: ReplayRecord, turn: TurnLogprobs) -> list[int]:
    trajectory = record.trajectory
    messages = [_as_objects(message) for message in trajectory.messages[: turn.turn]]
    ids = bundle.encode(bundle.render(messages, trajectory.tools, add_generation_prompt=True))
    if not ids:
        raise _refused(record, turn, "the chat template writes an empty prompt")
    if turn.prompt_tokens is not None and turn.prompt_tokens != len(ids):
        raise _refused(
            record,
            turn,
            f"the prompt has {len(ids)} tokens with this model's template, and the endpoint counted {turn.prompt_tokens}",
        )
    return ids


def _as_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """Tool-call arguments as objects: the wire has JSON text, templates want what servers hand them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_call(call) for call in calls]}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _sampled_ids(bundle: TokenizerBundle, record: ReplayRecord, turn: TurnLogprobs) -> list[int]:
    """The recorded ids, if they spell the recorded tokens; else the recorded tokens, if they tokenise to themselves."""
    text = "".join(turn.tokens)
    if turn.token_ids is not None:
        if any(not 0 <= token < bundle.vocab_size for token in turn.token_ids):
            raise _refused(record, turn, f"a token id is outside this model's vocabulary of {bundle.vocab_size}")
        spelled = bundle.decode(turn.token_ids)
        if _LOST not in text + spelled and spelled.strip() != text.strip():
            raise _refused(record, turn, "the recorded token ids do not spell the recorded tokens with this tokenizer")
        return turn.token_ids
    try:
        ids = bundle.encode(text)
    except TypeError as error:
        raise _refused(record, turn, "a recorded token holds a lone surrogate") from error
    pieces = [bundle.decode([token]) for token in ids]
    if [piece.lstrip() for piece in pieces] != [token.lstrip() for token in turn.tokens]:
        raise _refused(
            record,
            turn,
            f"its {len(turn.tokens)} recorded tokens tokenise to {len(ids)} others; without token ids they are not certain",
        )
    return ids


def _refused(record: ReplayRecord, turn: TurnLogprobs, message: str) -> BashGymError:
    where = f"{record.environment_id} attempt {record.attempt_index}, message {turn.turn}"
    return fail(
        "replay_invalid",
        f"{where}: {message}",
        "Use the model that recorded the replay or one with its tokenizer, and record with token ids where you can.",
        ["replay"],
    )
