"""From records to the two token sequences of training: original context + target, hinted context + target.

The target is encoded once, apart from the contexts, and appended to both, so its ids are the same in both branches by
construction. Apart is also how a model meets them: a prompt is tokenised alone, and the answer follows token by token.
With `wrap` the context is one user turn and the target the assistant's, in the model's chat template; a recorded tool
call becomes a tool call of the template. The token that ends the turn (else the eos) belongs to the target.
A context that is too long loses tokens from its left: never the template's head and tail, never the hint, never a
token of the target. A row for which that is not enough is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError
from bashgym.data.encode import IGNORED, RowProblem
from bashgym.data.sessions.contract import TAG, Record
from bashgym.data.tokens import TokenizerBundle

_PROBE = "bashgymprobe"


class DoesNotFit(RowProblem):
    """A row whose target, hint and frame need more than `max_length` tokens."""

    def __init__(self, row: int, needed: int) -> None:
        super().__init__("target_does_not_fit", row, f"its target and hint need {needed} tokens")
        self.needed = needed


class Branches(msgspec.Struct):
    """One record as token ids. Each branch is its context followed by `target`."""

    row: int
    original: list[int]
    hinted: list[int]
    target: list[int]
    full_length: int
    """Tokens of the longer branch before truncation."""

    @property
    def truncated(self) -> bool:
        """A context has lost tokens."""
        return self.full_length > max(len(self.original), len(self.hinted)) + len(self.target)

    def sequence(self, context: list[int]) -> tuple[list[int], list[int]]:
        """(input_ids, labels) of a branch; labels are -100 on the context."""
        return [*context, *self.target], [*[IGNORED] * len(context), *self.target]


def encode_records(
    bundle: TokenizerBundle,
    records: Iterable[Record],
    *,
    max_length: int,
    wrap: bool = False,
    on_problem: Callable[[RowProblem], None] = lambda _: None,
) -> Iterator[tuple[Record, Branches]]:
    """The rows that can be trained on, in order; `on_problem` gets the others."""
    for record in records:
        try:
            yield record, encode_record(bundle, record, max_length=max_length, wrap=wrap)
        except RowProblem as problem:
            on_problem(problem)


def encode_record(bundle: TokenizerBundle, record: Record, *, max_length: int, wrap: bool = False) -> Branches:
    """Both branches of a record. RowProblem if it has no certain form or does not fit into `max_length` tokens."""
    try:
        head, tail, answer = _frame(bundle, record) if wrap else ("", "", record.target_text)
        target = bundle.encode(answer)
        if not wrap and bundle.eos_id is not None:
            target.append(bundle.eos_id)
        # The hinted one first: it needs the more room, and what it says of it holds for both.
        hinted, longer = _context(bundle, record, (head, record.hinted_context, tail), max_length, len(target))
        original, full = _context(bundle, record, (head, record.original_context, tail), max_length, len(target))
    except BashGymError as error:
        code = "template_error" if bundle.templates else "no_chat_template"
        raise RowProblem(code, record.row, error.message) from error
    except TypeError as error:
        message = "the text holds a lone surrogate and is not valid Unicode"
        raise RowProblem("invalid_unicode", record.row, message) from error
    return Branches(record.row, original, hinted, target, max(full, longer) + len(target))


def messages(record: Record) -> list[dict[str, Any]]:
    """The assistant turn that is trained, as a list."""
    if record.target_type in ("tool_call", "edit"):
        try:
            call = msgspec.json.decode(record.target_text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            call = None
        if isinstance(call, dict) and call.keys() == {"name", "arguments"} and isinstance(call["arguments"], dict):
            return [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}]
    return [{"role": "assistant", "content": record.target_text}]


def _frame(bundle: TokenizerBundle, record: Record) -> tuple[str, str, str]:
    """(text before the context, text between context and answer, answer with the token that ends the turn)."""
    prompt = [{"role": "user", "content": _PROBE}]
    before = bundle.render(prompt, add_generation_prompt=True)
    whole = bundle.render([*prompt, *messages(record)])
    head, probe, tail = before.partition(_PROBE)
    if not probe or not whole.startswith(before):
        message = "the chat template does not render a prompt the same once an answer follows"
        raise RowProblem("template_not_prefix_preserving", record.row, message)
    answer = whole[len(before) :]
    trimmed = answer.rstrip()
    ends = tuple(bundle.control_tokens) + ((bundle.eos_token,) if bundle.eos_token else ())
    return head, tail, trimmed if trimmed.endswith(ends) else answer


def _context(
    bundle: TokenizerBundle, record: Record, texts: tuple[str, str, str], max_length: int, n_target: int
) -> tuple[list[int], int]:
    """(ids of a context in its frame that leave room for the target, how many there were)."""
    head, context, tail = texts
    encoding = bundle.tokenizer.encode(head + context + tail, add_special_tokens=False)
    lead = [bundle.bos_id] if not head and bundle.add_bos and bundle.bos_id is not None else []
    ids: list[int] = [*lead, *encoding.ids]
    over = len(ids) + n_target - max_length
    if over <= 0:
        return ids, len(ids)
    first, last = len(head), len(head) + len(context)
    kept_from = kept_to = last
    if TAG in context:
        kept_from = first + context.index(TAG)
        kept_to = first + context.index(record.hint_text, context.index(TAG)) + len(record.hint_text)
    free = [
        at
        for at, (start, end) in enumerate(encoding.offsets, len(lead))
        if first <= start < end <= last and not (start < kept_to and end > kept_from)
    ]
    if len(free) <= over:
        raise DoesNotFit(record.row, len(ids) - len(free) + 1 + n_target)
    dropped = set(free[:over])
    return [token for at, token in enumerate(ids) if at not in dropped], len(ids)
