"""From SFT examples to the exact `input_ids` and `labels` that the trainer is fed; preview and preflight use the same.

What is trained (`labels` equal to the id; -100 elsewhere):
* messages, ASSISTANT: what the template's `{% generation %}` blocks enclose. Without blocks, the prefix difference:
  an assistant turn begins where the prompt before it (with generation prompt) ends, and includes its end-of-turn
  token; blank space that the template writes after that token is not trained. COMPLETION: the last such turn only.
* prompt+completion: as TRL: every token behind the common token prefix of the prompt and the whole, so the end of the
  template's last turn counts; plain strings get the eos appended. ASSISTANT: assistant turns of the completion only.
* text: every token, the eos appended where it does not end with it. ALL: every token of any kind of row.
A message of weight 0 is never trained. Truncation keeps the start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any
from unicodedata import is_normalized

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.data.template import Span
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import Encoded, LossPolicy, SftExample

if TYPE_CHECKING:
    from tokenizers import Encoding

IGNORED = -100
"""The label of a token that is not trained."""
CHARS_PER_TOKEN = 64
"""Only the first `max(max_length, 1024) * CHARS_PER_TOKEN` characters of a row are tokenised."""
_CHUNK_CHARS = 4_000_000


class RowProblem(Exception):
    """A row whose mask would not be certain. `code` is that of the finding."""

    def __init__(self, code: str, row: int, message: str) -> None:
        super().__init__(message)
        self.code, self.row, self.message = code, row, message


@dataclass(slots=True)
class Plan:
    """A row as text, and which of it is trained."""

    row: int
    text: str
    special: bool = False
    """Let the tokenizer add its own bos and eos (never for rendered conversations)."""
    spans: list[Span] | None = None
    """Trained characters; None: all."""
    prompt: str | None = None
    """What shares a token prefix with this is not trained."""
    chars: int = 0
    """Characters before the cap."""


class Full(msgspec.Struct, gc=False):
    """A tokenised row before truncation."""

    row: int
    input_ids: list[int]
    labels: list[int]
    length: int
    """Tokens of the whole row; an estimate where `capped`."""
    capped: bool = False
    """The row is so far above max_length that only its start was tokenised."""
    shifted: bool = False
    """The prompt alone tokenises differently at its end than followed by the completion."""

    def truncated(self, max_length: int) -> Encoded:
        """The first `max_length` tokens."""
        trained = len(self.labels) - self.labels.count(IGNORED)
        return Encoded(self.row, self.input_ids[:max_length], self.labels[:max_length], self.length, trained)


def loss_policy(example: SftExample, assistant_only_loss: bool | None, completion_only_loss: bool | None) -> LossPolicy:
    """The policy of the two request fields for rows of this kind. Unset: AUTO."""
    if assistant_only_loss:
        return LossPolicy.ASSISTANT
    if completion_only_loss:
        return LossPolicy.COMPLETION
    decides = assistant_only_loss if example.messages is not None else completion_only_loss
    return LossPolicy.AUTO if decides is None else LossPolicy.ALL


def encode_example(
    bundle: TokenizerBundle, example: SftExample, *, max_length: int, policy: LossPolicy = LossPolicy.AUTO
) -> Encoded:
    """One row. `row_not_encodable` if its mask would not be certain."""
    return next(encode_many(bundle, [example], max_length=max_length, policy=policy))


def encode_many(
    bundle: TokenizerBundle,
    examples: Iterable[SftExample],
    *,
    max_length: int,
    policy: LossPolicy = LossPolicy.AUTO,
    batch: int = 512,
    on_problem: Callable[[RowProblem], None] | None = None,
) -> Iterator[Encoded]:
    """The rows in order. A row with a problem raises `row_not_encodable`, or is left out if `on_problem` takes it."""
    for full in iter_full(bundle, examples, max_length=max_length, policy=policy, batch=batch, on_problem=on_problem):
        yield full.truncated(max_length)


def trainable(
    bundle: TokenizerBundle, examples: Iterable[SftExample], *, max_length: int, policy: LossPolicy = LossPolicy.AUTO
) -> Iterator[Encoded]:
    """The rows that training sees: encodable, and with a trained token left. The eval split counts these."""
    for encoded in encode_many(bundle, examples, max_length=max_length, policy=policy, on_problem=lambda _: None):
        if encoded.supervised:
            yield encoded


def iter_full(
    bundle: TokenizerBundle,
    examples: Iterable[SftExample],
    *,
    max_length: int,
    policy: LossPolicy = LossPolicy.AUTO,
    batch: int = 512,
    on_problem: Callable[[RowProblem], None] | None = None,
) -> Iterator[Full]:
    """The rows in order, not truncated; memory is bounded by two batches. Problems as in `encode_many`."""
    take = on_problem or _raise_problem
    cap = max(max_length, 1024) * CHARS_PER_TOKEN
    batches = _batches(examples, lambda example: plan_example(bundle, example, policy, cap), batch, take)
    # The tokenizer works outside the interpreter lock: one batch is tokenised while the next is rendered.
    with ThreadPoolExecutor(1) as worker:
        pending: deque[Future[list[Full | RowProblem]]] = deque()
        for plans in chain(batches, [[]]):
            pending.append(worker.submit(_encode_plans, bundle, plans))
            if len(pending) > 1:
                yield from _taken(pending.popleft().result(), take)


def _taken(results: list[Full | RowProblem], take: Callable[[RowProblem], None]) -> Iterator[Full]:
    for result in results:
        if isinstance(result, RowProblem):
            take(result)
        else:
            yield result


def _batches(
    examples: Iterable[SftExample],
    plan_one: Callable[[SftExample], Plan],
    batch: int,
    take: Callable[[RowProblem], None],
) -> Iterator[list[Plan]]:
    plans: list[Plan] = []
    held = 0
    for example in examples:
        try:
            plan = plan_one(example)
        except RowProblem as problem:
            take(problem)
            continue
        plans.append(plan)
        held += len(plan.text)
        if len(plans) >= batch or held > _CHUNK_CHARS:
            yield plans
            plans, held = [], 0
    if plans:
        yield plans


def _raise_problem(problem: RowProblem) -> None:
    raise fail("row_not_encodable", f"row {problem.row}: {problem.message} ({problem.code})", fields=["dataset_path"])


def plan_example(bundle: TokenizerBundle, example: SftExample, policy: LossPolicy, cap: int) -> Plan:
    """The row's text of at most `cap` characters and what of it is trained. RowProblem if that is not certain."""
    try:
        if example.messages is not None:
            plan = _plan_messages(bundle, example, example.messages, policy)
        elif isinstance(example.prompt, list) and isinstance(example.completion, list):
            plan = _plan_turns(bundle, example, example.prompt, example.completion, policy)
        elif isinstance(example.prompt, str) and isinstance(example.completion, str):
            plan = _plan_strings(bundle, example, example.prompt, example.completion, policy)
        else:
            plan = _plan_text(bundle, example, policy)
    except BashGymError as error:
        code = "template_error" if bundle.templates else "no_chat_template"
        raise RowProblem(code, example.row, error.message) from error
    plan.chars = len(plan.text)
    plan.text = plan.text[:cap]
    return plan


def _plan_text(bundle: TokenizerBundle, example: SftExample, policy: LossPolicy) -> Plan:
    if policy in (LossPolicy.ASSISTANT, LossPolicy.COMPLETION):
        raise RowProblem("loss_policy_does_not_fit", example.row, f"a text row has no {policy.value} to train alone")
    return Plan(example.row, _with_eos(bundle, example.text or ""), special=True)


def _plan_strings(
    bundle: TokenizerBundle, example: SftExample, prompt: str, completion: str, policy: LossPolicy
) -> Plan:
    if policy is LossPolicy.ASSISTANT:
        raise RowProblem(
            "loss_policy_does_not_fit", example.row, "assistant_only_loss needs messages, not plain strings"
        )
    text = prompt + _with_eos(bundle, completion)
    return Plan(example.row, text, special=True, prompt=None if policy is LossPolicy.ALL else prompt)


def _with_eos(bundle: TokenizerBundle, text: str) -> str:
    eos = bundle.eos_token if bundle.eos_id is not None else None
    return text + eos if eos and not text.endswith(eos) else text


def _plan_turns(
    bundle: TokenizerBundle,
    example: SftExample,
    prompt: list[dict[str, Any]],
    completion: list[dict[str, Any]],
    policy: LossPolicy,
) -> Plan:
    turns = [*prompt, *completion]
    text, marked = bundle.render_spans(turns, example.tools)
    if policy is LossPolicy.ALL:
        return Plan(example.row, text)
    before = bundle.render(prompt, example.tools, add_generation_prompt=True)
    spans = None
    if policy is LossPolicy.ASSISTANT:
        answers = [i for i in range(len(prompt), len(turns)) if turns[i]["role"] == "assistant"]
        spans = marked if marked else [_turn_span(bundle, example, turns, i, text) for i in answers]
    return Plan(example.row, text, spans=spans, prompt=before)


def _plan_messages(
    bundle: TokenizerBundle, example: SftExample, messages: list[dict[str, Any]], policy: LossPolicy
) -> Plan:
    text, marked = bundle.render_spans(messages, example.tools)
    silent = _silent(example, len(messages))
    if policy is LossPolicy.ALL:
        cut = [_turn_span(bundle, example, messages, i, text) for i in sorted(silent)]
        return Plan(example.row, text, spans=_complement(cut, len(text)) if cut else None)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    wanted = [i for i in (answers[-1:] if policy is LossPolicy.COMPLETION else answers) if i not in silent]
    if bundle.template_for(example.tools).has_markers:
        if len(marked) == len(answers):
            return Plan(example.row, text, spans=[marked[k] for k, i in enumerate(answers) if i in wanted])
        if wanted == answers:
            return Plan(example.row, text, spans=marked)
    return Plan(example.row, text, spans=[_turn_span(bundle, example, messages, i, text) for i in wanted])


def _silent(example: SftExample, n_messages: int) -> set[int]:
    weights = example.weights or []
    for at, weight in enumerate(weights[:n_messages]):
        if weight not in (0, 1):
            message = f"messages[{at}] has the loss weight {weight}; only 0 and 1 are supported"
            raise RowProblem("loss_weight_unsupported", example.row, message)
    return {at for at, weight in enumerate(weights[:n_messages]) if weight == 0}


def _turn_span(
    bundle: TokenizerBundle, example: SftExample, messages: list[dict[str, Any]], at: int, text: str
) -> Span:
    """The characters of message `at` in `text`, the rendering of all `messages`, by the prefix difference."""
    answers = messages[at]["role"] == "assistant"
    before = bundle.render(messages[:at], example.tools, answers) if at or answers else ""
    after = text if at + 1 == len(messages) else bundle.render(messages[: at + 1], example.tools)
    if len(before) > len(after) or not (text.startswith(after) and after.startswith(before)):
        raise RowProblem(
            "template_not_prefix_preserving",
            example.row,
            f"the chat template renders the conversation up to messages[{at}] differently once more turns follow, "
            "so where that turn lies cannot be told",
        )
    trimmed = after.rstrip()
    ends = tuple(bundle.control_tokens) + ((bundle.eos_token,) if bundle.eos_token else ())
    return len(before), max(len(before), len(trimmed) if trimmed.endswith(ends) else len(after))


def _complement(cut: list[Span], end: int) -> list[Span]:
    edges = [0, *(edge for span in cut for edge in span), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def _encode_plans(bundle: TokenizerBundle, plans: list[Plan]) -> list[Full | RowProblem]:
    try:
        return [*_encode_chunk(bundle, plans)]
    except TypeError:
        # A batch fails as a whole on one lone surrogate.
        if len(plans) > 1:
            return [result for plan in plans for result in _encode_plans(bundle, [plan])]
        message = "the text holds a lone surrogate and is not valid Unicode"
        return [RowProblem("invalid_unicode", plans[0].row, message)]


def _encode_chunk(bundle: TokenizerBundle, plans: list[Plan]) -> list[Full]:
    prompts = [plan for plan in plans if plan.prompt is not None]
    texts = _batch(bundle, [(plan.text, plan.special) for plan in plans])
    befores = iter(_batch(bundle, [((plan.prompt or "")[: len(plan.text)], plan.special) for plan in prompts]))
    return [
        _label(bundle, plan, encoding, next(befores).ids if plan.prompt is not None else None)
        for plan, encoding in zip(plans, texts, strict=True)
    ]


def _batch(bundle: TokenizerBundle, texts: Sequence[tuple[str, bool]]) -> list[Encoding]:
    found: list[Encoding | None] = [None] * len(texts)
    for special in (False, True):
        at = [i for i, (_, wants) in enumerate(texts) if wants is special]
        encode = bundle.tokenizer.encode_batch_fast if bundle.byte_lengths else bundle.tokenizer.encode_batch
        encodings = encode([texts[i][0] for i in at], add_special_tokens=special) if at else []
        for i, encoding in zip(at, encodings, strict=True):
            found[i] = encoding
    return [encoding for encoding in found if encoding is not None]


def _label(bundle: TokenizerBundle, plan: Plan, encoding: Encoding, before: list[int] | None) -> Full:
    ids = encoding.ids
    if plan.spans is None:
        labels = ids.copy()
    else:
        labels = [IGNORED] * len(ids)
        for first, end in token_ranges(bundle, plan, encoding, ids):
            labels[first:end] = ids[first:end]
    shared = 0
    if before is not None:
        shared = common_prefix(before, ids)
        labels[:shared] = [IGNORED] * shared
    capped = len(plan.text) < plan.chars
    length = len(ids) * plan.chars // max(1, len(plan.text)) if capped else len(ids)
    return Full(plan.row, ids, labels, length, capped, before is not None and shared < len(before) and not capped)


def common_prefix(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    n = min(len(ids), len(others))
    if ids[:n] == others[:n]:
        return n
    return next(i for i in range(n) if ids[i] != others[i])


def token_ranges(bundle: TokenizerBundle, plan: Plan, encoding: Encoding, ids: list[int]) -> list[Span]:
    """The token ranges [first, end) that overlap the plan's spans."""
    spans = plan.spans or []
    lengths = bundle.byte_lengths
    # A normalizer moves bytes; none moves those of ASCII or of text that is already in normal form.
    if lengths and not plan.special and (plan.text.isascii() or is_normalized("NFC", plan.text)):
        ends = list(accumulate(map(lengths.__getitem__, ids)))
        whole = len(plan.text) if plan.text.isascii() else len(plan.text.encode())
        if (ends[-1] if ends else 0) == whole:
            if whole != len(plan.text):
                spans = [(len(plan.text[:a].encode()), len(plan.text[:b].encode())) for a, b in spans]
            # A token begins where the one before ends, so its start is the end at the index before it.
            return [(bisect_right(ends, a), bisect_left(ends, b) + 1) for a, b in spans if a < min(b, whole)]
    offsets = encoding.offsets
    if lengths:  # the fast encoding knows no offsets
        offsets = bundle.tokenizer.encode(plan.text, add_special_tokens=plan.special).offsets
    return [
        (bisect_right(offsets, a, key=lambda o: o[1]), bisect_left(offsets, b, key=lambda o: o[0])) for a, b in spans
    ]
