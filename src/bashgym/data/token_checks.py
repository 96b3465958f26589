"""What tokenisation shows about a dataset and a model: one streaming pass collects, `findings` judges.

Owns the finding codes in `CODES`. Does not read files and does not know steps or splits (preflight does).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from bashgym.core.errors import BashGymError
from bashgym.data.encode import CHARS_PER_TOKEN, IGNORED, Full, RowProblem
from bashgym.data.preflight import TokenStats
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import MAX_ROWS_LISTED, Finding, LossPolicy, Severity, SftExample

_PROBE = "bashgymprobe"

CODES: dict[str, tuple[Severity, str]] = {
    # rows that cannot be encoded
    "no_chat_template": (
        Severity.ERROR,
        "Use a model with a chat template, or rows of text or plain prompt and completion.",
    ),
    "template_error": (Severity.ERROR, "Mend the rows, or use a model whose template takes such conversations."),
    "template_not_prefix_preserving": (
        Severity.ERROR,
        "Use a template with {% generation %} markers, or one that renders earlier turns the same whatever follows.",
    ),
    "loss_weight_unsupported": (Severity.ERROR, "Use the weights 0 (not trained) and 1 (trained)."),
    "loss_policy_does_not_fit": (
        Severity.ERROR,
        "Leave assistant_only_loss and completion_only_loss unset for such rows.",
    ),
    "invalid_unicode": (
        Severity.ERROR,
        "Replace the lone surrogates, e.g. by writing the file as UTF-8 with errors='replace'.",
    ),
    # rows that encode, but not to what one wants
    "zero_supervised_tokens": (Severity.ERROR, ""),
    "truncated_rows": (Severity.WARNING, "Raise max_seq_length, or split or shorten these rows."),
    "stop_token_not_trained": (
        Severity.ERROR,
        "Make the end-of-turn token the tokenizer's eos_token or list it in generation_config.json; put it inside "
        "{% generation %} if the template has markers.",
    ),
    "double_bos": (Severity.WARNING, "Remove the BOS from the text, or set add_bos_token to false."),
    "special_token_in_content": (
        Severity.WARNING,
        "Remove or rewrite these strings if the rows come from untrusted text.",
    ),
    "prompt_boundary_shift": (
        Severity.WARNING,
        "End plain prompts without blank space; use a template that keeps the generation prompt.",
    ),
    "token_id_out_of_range": (Severity.ERROR, "Use the tokenizer that belongs to this model, or resize its embedding."),
    # the model folder
    "template_without_generation_markers": (Severity.ERROR, ""),
    "eos_not_in_vocabulary": (Severity.ERROR, ""),
    "pad_not_in_vocabulary": (Severity.ERROR, "Set pad_token to a token of the vocabulary."),
    "pad_equals_eos": (Severity.WARNING, "Set pad_token to another token of the vocabulary, if it has an unused one."),
    "max_length_above_window": (Severity.ERROR, "Lower max_seq_length, or use a model with a longer window."),
    "template_uses_date": (
        Severity.INFO,
        "Give the date in the system prompt if a later run must see the same tokens.",
    ),
}
"""Severity and mend of each; some are decided with the case at hand."""


@dataclass
class Tally:
    """How many rows, the first of them, and what the first one said."""

    count: int = 0
    rows: list[int] = field(default_factory=list)
    message: str = ""

    def add(self, row: int, message: str = "") -> None:
        """Counts a row."""
        self.count += 1
        if len(self.rows) < MAX_ROWS_LISTED:
            self.rows.append(row)
        self.message = self.message or message


class Scan:
    """Collects in one pass, eight bytes a row: `watch` the examples, `add` their encodings, `refuse` the problems."""

    def __init__(self, bundle: TokenizerBundle, max_length: int) -> None:
        self.bundle, self.max_length = bundle, max_length
        self.lengths = array("Q")
        self.total = self.supervised = self.supervised_full = self.cut = self.needed = self.longest = (
            self.longest_row
        ) = self.examples = 0
        self.conversations = self.stops = self.eos_trained = self.untrainable = self.full_rows = 0
        self.tallies: dict[str, Tally] = {}
        names = sorted((t for t in bundle.control_tokens if t.strip()), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names))) if names else None
        self._stops = bundle.stop_ids
        self._adds_bos = bundle.bos_id is not None and (bundle.add_bos or bundle.claims_bos)
        sizes = (bundle.vocab_size, bundle.model_vocab_size)
        self._id_limit = sizes[1] if sizes[1] and sizes[0] > sizes[1] else None

    def watch(self, examples: Iterable[SftExample]) -> Iterator[SftExample]:
        """The same examples, looked at on the way."""
        for example in examples:
            self.examples += 1
            turns = example.messages
            if turns is None and isinstance(example.prompt, list) and isinstance(example.completion, list):
                turns = [*example.prompt, *example.completion]
            if turns is not None:
                self.conversations += 1
                if self._control:
                    for turn in turns:
                        content = turn.get("content")
                        if isinstance(content, str) and (found := self._control.search(content)):
                            self._tally("special_token_in_content", example.row, found[0])
                            break
            elif self._adds_bos and (example.text or str(example.prompt)).startswith(self.bundle.bos_token or ""):
                self._tally("double_bos", example.row)
            yield example

    def refuse(self, problem: RowProblem) -> None:
        """A row that could not be encoded."""
        self._tally(problem.code, problem.row, f"row {problem.row}: {problem.message}")

    def add(self, full: Full) -> None:
        """An encoded row."""
        ids, labels = full.input_ids, full.labels
        n, kept = full.length, min(len(ids), self.max_length)
        trained = len(labels) - labels.count(IGNORED)
        left = trained if n <= self.max_length else kept - labels[:kept].count(IGNORED)
        if n > self.longest:
            self.longest, self.longest_row = n, full.row
        self.lengths.append(n)
        self.total += kept
        self.supervised += left
        self.supervised_full += trained
        if n > self.max_length:
            self.cut += n - kept
            self._tally("truncated_rows", full.row)
        if not left:
            self._no_label(full, trained)
        elif n <= self.max_length:
            self._look_at_end(full.row, labels)
        if full.shifted:
            self._tally("prompt_boundary_shift", full.row)
        if self._id_limit and ids and max(ids) >= self._id_limit:
            self._tally("token_id_out_of_range", full.row)

    def _no_label(self, full: Full, trained: int) -> None:
        self._tally("zero_supervised_tokens", full.row)
        if trained:
            first = next(i for i, label in enumerate(full.labels) if label != IGNORED)
            self.needed = max(self.needed, first + 1)
        else:
            self.untrainable += 1

    def _look_at_end(self, row: int, labels: list[int]) -> None:
        last = len(labels) - 1
        while labels[last] == IGNORED:
            last -= 1
        self.full_rows += 1
        # A template may write a line break behind the token that ends the turn, and the completion mask trains it.
        end = [label for label in labels[max(0, last - 2) : last + 1] if label in self._stops]
        if end:
            self.stops += 1
            self.eos_trained += self.bundle.eos_id in end
        else:
            self._tally("stop_token_not_trained", row)

    def _tally(self, code: str, row: int, message: str = "") -> None:
        self.tallies.setdefault(code, Tally()).add(row, message)

    @property
    def encoded(self) -> int:
        """Rows that encode."""
        return len(self.lengths)

    @property
    def trainable(self) -> int:
        """Rows that training sees: encodable, and with a trained token left."""
        return self.encoded - self.count("zero_supervised_tokens")

    def count(self, code: str) -> int:
        """Rows that have this."""
        return self.tallies[code].count if code in self.tallies else 0

    def stats(self) -> TokenStats:
        """The figures so far."""
        lengths = sorted(self.lengths) or [0]
        return TokenStats(
            total=self.total,
            supervised=self.supervised,
            max=lengths[-1],
            p50=lengths[(len(lengths) - 1) // 2],
            p95=lengths[(len(lengths) - 1) * 95 // 100],
            truncated_rows=self.count("truncated_rows"),
            zero_supervised_rows=self.count("zero_supervised_tokens"),
        )


def findings(scan: Scan, policy: LossPolicy, assistant_only_loss: bool | None) -> list[Finding]:
    """What the pass says, errors first."""
    found = [*_model_findings(scan, policy, assistant_only_loss), *_row_findings(scan)]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _finding(scan: Scan, code: str, message: str, **changes: object) -> Finding:
    severity, mend = CODES[code]
    tally = scan.tallies.get(code, Tally())
    made = Finding(code, severity, message, mend, rows=tuple(tally.rows), count=tally.count)
    return msgspec.structs.replace(made, **changes) if changes else made


_PLAIN = {
    "double_bos": "{n} of {of} rows begin with the BOS token twice: the text has it and the tokenizer adds it again",
    "prompt_boundary_shift": "{n} of {of} prompts tokenise differently alone than followed by their completion; "
    "the completion is trained from where they part, which is not what the model sees when it is asked",
    "special_token_in_content": "{n} of {of} rows have special tokens such as {said} in their content; "
    "they become control tokens and can end or forge a turn",
    "token_id_out_of_range": "{n} of {of} rows use token ids beyond the model's embedding",
}


def _row_findings(scan: Scan) -> Iterator[Finding]:
    for code, tally in scan.tallies.items():
        if code in _PLAIN:
            text = _PLAIN[code].format(n=tally.count, of=scan.examples, said=tally.message)
            yield _finding(scan, code, text)
        elif code in _SPECIAL:
            yield _SPECIAL[code](scan)
        else:
            yield _finding(scan, code, f"{tally.count} of {scan.examples} rows cannot be encoded: {tally.message}")


def _zero_supervised(scan: Scan) -> Finding:
    tally, limit, window = scan.tallies["zero_supervised_tokens"], scan.max_length, scan.bundle.window
    text = (
        f"{tally.count} of {scan.encoded} rows keep no trained token at max_length {limit}: all their labels are -100"
    )
    mends = []
    if scan.needed:
        text += f"; the prompt of {tally.count - scan.untrainable} fills or overflows the window"
        mends.append(f"The smallest max_seq_length that keeps every such row trained is {scan.needed}")
        if window and scan.needed > window:
            mends[-1] += f", above the model's {window}: shorten or drop these rows"
    if scan.untrainable:
        text += f"; {scan.untrainable} have nothing to train at any length"
        mends.append("Rows without an assistant turn or completion cannot be trained: drop them")
    return _finding(scan, "zero_supervised_tokens", text, mend=". ".join(mends) + ".", field="max_seq_length")


def _truncated(scan: Scan) -> Finding:
    tally = scan.tallies["truncated_rows"]
    share = 100 * tally.count / scan.encoded
    text = (
        f"{tally.count} of {scan.encoded} rows ({share:.1f} %) are longer than max_length {scan.max_length}; "
        f"{scan.cut} tokens are cut off their ends; the longest is "
        f"row {scan.longest_row} with a length of {scan.longest} tokens"
    )
    if scan.longest > max(scan.max_length, 1024) * CHARS_PER_TOKEN // 8:
        text += " (figures of such rows are estimates)"
    return _finding(scan, "truncated_rows", text, field="max_seq_length")


def _stop(scan: Scan) -> Finding:
    tally = scan.tallies["stop_token_not_trained"]
    names = (
        ", ".join(sorted(filter(None, map(scan.bundle.tokenizer.id_to_token, scan.bundle.stop_ids))))
        or "none is declared"
    )
    text = (
        f"the last trained turn of {tally.count} of {scan.full_rows} rows ends without a trained stop token ({names}): "
        "a model trained so does not learn to stop"
    )
    severity = Severity.WARNING if scan.stops else Severity.ERROR
    return _finding(scan, "stop_token_not_trained", text, severity=severity)


_SPECIAL = {"zero_supervised_tokens": _zero_supervised, "truncated_rows": _truncated, "stop_token_not_trained": _stop}


def _model_findings(scan: Scan, policy: LossPolicy, assistant_only_loss: bool | None) -> Iterator[Finding]:
    bundle = scan.bundle
    if scan.conversations and bundle.chat_template:
        yield from _markers(scan, policy, assistant_only_loss)
        if any("strftime_now" in source for source in bundle.templates.values()):
            yield _finding(scan, "template_uses_date", "the chat template may write today's date into the prompt")
    if bundle.eos_token and bundle.eos_id is None:
        likely = turn_end(bundle)
        mend = f"Set eos_token to {likely}, which the chat template ends turns with." if likely else "Set eos_token."
        text = f"the eos_token {bundle.eos_token!r} is not in the vocabulary of {bundle.folder.name}"
        yield _finding(scan, "eos_not_in_vocabulary", text, mend=mend, field="eos_token")
    if bundle.pad_token and bundle.pad_id is None:
        text = f"the pad_token {bundle.pad_token!r} is not in the vocabulary of {bundle.folder.name}"
        yield _finding(scan, "pad_not_in_vocabulary", text, field="pad_token")
    elif bundle.eos_id is not None and bundle.pad_id in (None, bundle.eos_id):
        same = "there is no pad token, so the eos is used:" if bundle.pad_id is None else "the pad token is the eos"
        text = (
            f"{same} {bundle.eos_token}. This trainer masks padding by position: {scan.eos_trained} of "
            f"{scan.full_rows} whole rows train the eos. "
            "A collator that masks by the pad id (DataCollatorForLanguageModeling) would not"
        )
        yield _finding(scan, "pad_equals_eos", text, field="pad_token", count=scan.eos_trained)
    if bundle.window and scan.max_length > bundle.window:
        text = f"max_seq_length {scan.max_length} is above the model's window of {bundle.window} tokens"
        yield _finding(scan, "max_length_above_window", text, field="max_seq_length")


def _markers(scan: Scan, policy: LossPolicy, assistant_only_loss: bool | None) -> Iterator[Finding]:
    if scan.bundle.has_generation_markers or policy not in (LossPolicy.AUTO, LossPolicy.ASSISTANT):
        return
    total = sum(scan.lengths)
    if assistant_only_loss:
        text = (
            "assistant_only_loss is set, but the chat template has no {% generation %} markers: by them 0 of "
            f"{total} tokens would be trained"
        )
        mend = (
            "Leave assistant_only_loss unset (assistant turns are then found by comparing renderings), set "
            "completion_only_loss, set assistant_only_loss to false for the loss on all tokens, or give the model a "
            "template with {% generation %} markers."
        )
        yield _finding(scan, "template_without_generation_markers", text, mend=mend, field="assistant_only_loss")
        return
    text = (
        "the chat template has no {% generation %} markers; assistant turns were found by comparing renderings: "
        f"{scan.supervised_full} of {total} tokens are trained"
    )
    yield _finding(scan, "template_without_generation_markers", text, severity=Severity.INFO)


def turn_end(bundle: TokenizerBundle) -> str | None:
    """The special token that the chat template writes after an assistant turn; None if it writes none."""
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
    try:
        tail = bundle.render(turns).rpartition(_PROBE)[2]
    except BashGymError:
        return None
    found = [(tail.index(token), token) for token in bundle.control_tokens if token in tail]
    return min(found)[1] if found else None
