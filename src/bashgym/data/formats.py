"""From rows of any known SFT shape to `SftExample`s; the mapping is shown once and can be changed.

Owns: telling the format from the first rows, the column tables, row -> example. Does not own: messages (`messages`),
bytes (`readers`), tokens. A row that cannot be used is an error finding and is skipped; nothing is guessed per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from bashgym.core.errors import fail
from bashgym.data import messages as chat
from bashgym.data import textchecks
from bashgym.data.findings import Collector, shown
from bashgym.data.jsonfaults import json_type
from bashgym.data.readers import RowBatch, Scan
from bashgym.data.types import Finding, Severity, SftExample

FORMATS = ("auto", "messages", "sharegpt", "prompt_completion", "alpaca", "text")
PROBE_ROWS = 20
_CANONICAL = ("messages", "prompt", "completion", "text", "tools")
_PAIRS: tuple[tuple[str, str], ...] = (
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("query", "response"),
    ("prompt", "response"),
)
_NEEDED = "messages | conversations | prompt+completion | instruction+output | question+answer | query+response | text"
_USED_BESIDE = frozenset(("tools", "system", "input", "context", "history"))
_OTHER_METHODS = (
    (("chosen",), "They look like preference pairs: use a dpo method."),
    (("input", "output"), "If input is the prompt and output the answer, say so: prompt=input, completion=output."),
    (("data",), "The rows seem to be inside the list 'data'; save that list as the file."),
)


class Shape(msgspec.Struct, frozen=True):
    """How the columns of a file become an example."""

    format: str
    columns: dict[str, str]
    """Canonical name -> column of the file."""
    chat: bool = False
    """An instruction and its answer: they become a user and an assistant turn."""
    note: str = ""
    """The mapping in words; empty if the file is canonical already."""


def detect(rows: list[dict[str, Any]]) -> str:
    """The format of the first rows, one of `FORMATS` but auto. `dataset_format` if none fits."""
    return _detect(rows).format


def iter_examples(
    path: Path,
    findings: list[Finding],
    *,
    dataset_format: str = "auto",
    column_mapping: Mapping[str, str] | None = None,
) -> Iterator[SftExample]:
    """Canonical examples of a dataset file. Rows with errors are reported and left out.

    `column_mapping` maps canonical names (messages, prompt, completion, text, tools) to the file's columns.
    Raises `dataset_missing`, `dataset_empty`, `dataset_unreadable`, `dataset_format`.
    """
    collector = Collector(findings)
    try:
        reading = Reading(Scan(path, collector), collector, dataset_format, column_mapping)
        yield from reading
    finally:
        collector.flush()


class Reading:
    """Examples of one pass. `shape` is known once iteration has begun.

    With `on_plain`, plain conversations are handed to it by their sizes alone and are not yielded.
    """

    def __init__(
        self,
        scan: Scan,
        collector: Collector,
        dataset_format: str,
        column_mapping: Mapping[str, str] | None,
        on_plain: Callable[[chat.PlainSizes], None] | None = None,
    ) -> None:
        self.scan, self.collector, self._on_plain = scan, collector, on_plain
        self._format, self._mapping = dataset_format, column_mapping
        self.shape = Shape("unknown", {})
        self._argument_names: set[frozenset[str]] = set()

    def __iter__(self) -> Iterator[SftExample]:
        begun = False
        for batch in self.scan:
            if not begun:
                probe = batch.values[:PROBE_ROWS]
                self.shape = resolve(probe, self._format, self._mapping, self.scan.path)
                self._announce(probe)
                begun = True
            yield from self._examples(batch)
        if len(self._argument_names) > 1:
            self.collector.add(
                "tool_arguments_vary",
                Severity.WARNING,
                "tool-call arguments differ between rows: each keeps its own keys, and no null is filled in",
            )

    def _examples(self, batch: RowBatch) -> Iterator[SftExample]:
        numbers, _, values, odd = batch
        plain = self._plain(batch)
        if plain and self._on_plain:
            self._on_plain(plain)
        for index in sorted(odd) if plain and self._on_plain else range(len(values)):
            if plain and index not in odd:
                yield SftExample(numbers[index], values[index][self.shape.columns["messages"]])
                continue
            example = self._convert(numbers[index], values[index], index in odd)
            if example is not None:
                yield example

    def _plain(self, batch: RowBatch) -> chat.PlainSizes | None:
        """The sizes of all rows that are not odd, if they are plain conversations and nothing else counts in them."""
        column = self.shape.columns.get("messages")
        values = batch.values
        if batch.odd:
            values = [value for index, value in enumerate(values) if index not in batch.odd]
        if (
            not values
            or column is None
            or not {"tools", "system", *self.shape.columns}.isdisjoint(set[str]().union(*values) - {column})
        ):
            return None
        return chat.plain_sizes([value.get(column) for value in values])

    def _convert(self, number: int, value: dict[str, Any], odd: bool) -> SftExample | None:
        if odd:
            textchecks.check(number, value, self.collector, templated=self.shape.format == "text")
        errors = self.collector.errors
        example = to_example(self.shape, number, value, self.collector)
        if example is None or self.collector.errors != errors:
            return None
        for message in example.messages or ():
            if "tool_calls" in message and len(self._argument_names) < 2:
                self._argument_names.update(frozenset(c["function"]["arguments"]) for c in message["tool_calls"])
        return example

    def _announce(self, probe: list[dict[str, Any]]) -> None:
        roles = _mapped_roles(probe, self.shape)
        note = "; ".join(filter(None, (self.shape.note, roles)))
        if note:
            self.collector.add(
                "columns_mapped",
                Severity.INFO,
                f"read as {self.shape.format}: {note}",
                mend="column_mapping overrides this.",
            )
        used = set(self.shape.columns.values()) | _USED_BESIDE
        extra = sorted({key for value in probe for key in value} - used)
        if extra:
            named = ", ".join(shown(key, 40) for key in extra[:10])
            self.collector.add("columns_ignored", Severity.INFO, f"columns that training does not use: {named}")


def resolve(
    rows: list[dict[str, Any]],
    dataset_format: str,
    column_mapping: Mapping[str, str] | None,
    path: Path | str = "the dataset",
) -> Shape:
    """The shape to read rows with: the mapping given, the format named, or the one detected."""
    found = sorted({key for row in rows for key in row})
    if column_mapping:
        return _mapped(found, dict(column_mapping), path)
    if dataset_format not in FORMATS:
        raise fail("dataset_format", f"unknown dataset format {dataset_format!r}; known are {', '.join(FORMATS)}")
    shape = _detect(rows, path)
    if dataset_format not in ("auto", shape.format):
        _refuse(found, path, f"it is not {dataset_format} but {shape.format}")
    return shape


def to_example(shape: Shape, number: int, value: dict[str, Any], collector: Collector) -> SftExample | None:
    """One row in canonical form; errors go to the collector and the result is then not to be used."""
    if "text" in shape.columns:
        return _text_example(shape.columns["text"], number, value, collector)
    missing = [column for name, column in shape.columns.items() if name != "tools" and value.get(column) is None]
    if missing:
        collector.error("missing_column", f"the row has no {' and no '.join(missing)}", number, missing[0])
        return None
    tools = chat.parse_tools(value.get(shape.columns.get("tools", "tools")), number, collector)
    if "messages" in shape.columns:
        turns = [*_system_turn(value), *_as_list(value[shape.columns["messages"]])]
        conversation = chat.normalise(turns, number, collector, column=shape.columns["messages"])
        if conversation is None:
            return None
        chat.check(conversation.messages, tools, number, collector)
        return SftExample(number, messages=conversation.messages, tools=tools, weights=conversation.weights)
    return _pair_example(shape, number, value, tools, collector)


def _text_example(column: str, number: int, value: dict[str, Any], collector: Collector) -> SftExample | None:
    text = value.get(column)
    if not isinstance(text, str) or not text.strip():
        problem = (
            "blank" if isinstance(text, str) else "missing" if text is None else f"a {json_type(text)}, not a string"
        )
        collector.error("text_invalid", f"the column {column} is {problem}", number, column, sample=text)
        return None
    return SftExample(number, text=text)


def _pair_example(
    shape: Shape, number: int, value: dict[str, Any], tools: list[dict[str, Any]] | None, collector: Collector
) -> SftExample | None:
    prompt, completion = (value[shape.columns[name]] for name in ("prompt", "completion"))
    if shape.chat and isinstance(prompt, str) and isinstance(completion, str):
        context = next((value[key] for key in ("input", "context") if isinstance(value.get(key), str)), "")
        prompt = f"{prompt}\n\n{context}" if context.strip() else prompt
        prompt = [*_system_turn(value), *_history(value.get("history")), {"role": "user", "content": prompt}]
        completion = [{"role": "assistant", "content": completion}]
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion.strip():
            collector.warn(
                "empty_assistant_turn", "the completion (assistant side) is empty", number, shape.columns["completion"]
            )
        return SftExample(number, prompt=prompt, completion=completion, tools=tools)
    completion = [completion] if isinstance(completion, dict) else completion
    if not isinstance(prompt, list) or not isinstance(completion, list):
        kinds = f"prompt is a {json_type(prompt)}, completion a {json_type(completion)}"
        collector.error("mixed_types", f"{kinds}; both must be strings or both lists of messages", number, "prompt")
        return None
    conversation = chat.normalise([*prompt, *completion], number, collector, column=shape.columns["completion"])
    if conversation is None or not completion:
        if conversation:
            collector.error("no_assistant_turn", "the completion has no assistant turn", number, "completion")
        return None
    chat.check(conversation.messages, tools, number, collector)
    cut = len(prompt)
    if all(message["role"] != "assistant" for message in conversation.messages[cut:]):
        collector.error("no_assistant_turn", "the completion has no assistant turn", number, "completion")
    return SftExample(number, prompt=conversation.messages[:cut], completion=conversation.messages[cut:], tools=tools)


def _detect(rows: list[dict[str, Any]], path: Path | str = "the dataset") -> Shape:
    found = {key for row in rows for key in row if row[key] is not None}
    for column in ("messages", "conversations"):
        values = [row[column] for row in rows if isinstance(row.get(column), list)]
        if values and not {"chosen", "rejected"} <= found:
            keys = {key for value in values for item in value if isinstance(item, dict) for key in item}
            renamed = column == "conversations" or ("from" in keys and "role" not in keys)
            parts = [f"{column} -> messages"] if renamed else []
            if "system" in found:
                parts.append("system -> a system turn")
            if any(isinstance(row.get("tools"), str) for row in rows):
                parts.append("tools: JSON string -> list")
            return Shape("sharegpt" if renamed else "messages", {"messages": column}, note=", ".join(parts))
    fitting = [pair for pair in _PAIRS if found.issuperset(pair)]
    if fitting and not {"chosen", "rejected"} & found:
        if len(fitting) > 1 and fitting[0] != ("prompt", "completion"):
            _refuse(sorted(found), path, "several column pairs fit: " + ", ".join("+".join(pair) for pair in fitting))
        return _pair_shape(fitting[0], found)
    if "text" in found and not {"chosen", "rejected"} & found:
        return Shape("text", {"text": "text"})
    _refuse(sorted(found), path)


def _pair_shape(pair: tuple[str, str], found: set[str]) -> Shape:
    prompt, completion = pair
    columns = {"prompt": prompt, "completion": completion}
    if pair == ("prompt", "completion"):
        return Shape("prompt_completion", columns)
    beside = [key for key in ("system", "history", "input", "context") if key in found]
    sources = "+".join([prompt, *beside])
    name = "alpaca" if prompt == "instruction" else "prompt_completion"
    return Shape(
        name, columns, True, f"{sources} -> prompt (a user turn), {completion} -> completion (an assistant turn)"
    )


def _mapped(found: list[str], mapping: dict[str, str], path: Path | str) -> Shape:
    for name, column in mapping.items():
        if name not in _CANONICAL:
            _refuse(found, path, f"column_mapping names {name!r}, which is none of {', '.join(_CANONICAL)}")
        if column not in found:
            _refuse(found, path, f"column_mapping gives {name}={column}, and there is no column {column!r}", column)
    note = ", ".join(f"{column} -> {name}" for name, column in mapping.items())
    main = set(mapping) - {"tools"}
    if main == {"messages"}:
        return Shape("messages", mapping, note=note)
    if main == {"text"}:
        return Shape("text", mapping, note=note)
    if main == {"prompt", "completion"}:
        return Shape("prompt_completion", mapping, note=note)
    _refuse(found, path, "column_mapping must give messages, or prompt and completion, or text")


def _refuse(found: list[str], path: Path | str, reason: str = "", wanted: str = "") -> NoReturn:
    """Raises `dataset_format` with the columns found, those needed, and a guess at what was meant."""
    from difflib import get_close_matches

    names = (
        [wanted] if wanted else ["messages", "conversations", "prompt", "completion", "instruction", "output", "text"]
    )
    guesses = []
    for name in names:
        near = get_close_matches(name, [key for key in found if key not in names], n=1, cutoff=0.75)
        guesses += [f"did you mean {near[0]!r} for {name!r}?"] if near else []
    hints = [text for keys, text in _OTHER_METHODS if set(keys) <= set(found)]
    listed = ", ".join(shown(key, 40) for key in found[:20]) or "none"
    raise fail(
        "dataset_format",
        f"{path}: {reason or 'no known format fits'}. Columns found: {listed}. Needed: {_NEEDED}",
        hint=" ".join([*guesses, *hints, "Or name them: --column-mapping prompt=COLUMN,completion=COLUMN."]),
        fields=found[:20],
    )


def _mapped_roles(rows: list[dict[str, Any]], shape: Shape) -> str:
    column = shape.columns.get("messages", "")
    turns = [
        turn for row in rows if isinstance(row.get(column), list) for turn in row[column] if isinstance(turn, dict)
    ]
    names = {str(turn.get("role", turn.get("from"))) for turn in turns}
    mapped = sorted(name for name in names if chat.ROLES.get(name, name) != name)
    return "roles " + ", ".join(f"{name} -> {chat.ROLES[name]}" for name in mapped) if mapped else ""


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _system_turn(value: dict[str, Any]) -> list[dict[str, Any]]:
    system = value.get("system")
    return [{"role": "system", "content": system}] if isinstance(system, str) and system.strip() else []


def _history(value: object) -> list[dict[str, Any]]:
    """LLaMA-Factory's history column: pairs of an instruction and its answer."""
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True)]
