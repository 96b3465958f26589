"""Which domain a row belongs to, and a dataset parted by domain.

Owns the rule and the files. A row has one domain: the one that it states, else its repository, else
multi_step_reasoning from five tool calls on, else the domain whose tools it calls most. Rows of no wanted domain are
counted and left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_bytes, digest_file
from bashgym.core.errors import fail
from bashgym.data.readers import iter_rows
from bashgym.data.types import Finding, Severity

TOOLS = {
    "file_operations": ("read", "write", "edit"),
    "bash_commands": ("bash",),
    "search_and_navigate": ("grep", "glob"),
}
"""Domain -> its tools, in lower case."""
MULTI_STEP = "multi_step_reasoning"
MIN_STEPS = 5
DEFAULT = (*TOOLS, MULTI_STEP)
REPO = "repo_"
_TURNS = ("messages", "conversations", "prompt", "completion", "chosen", "steps", "trace")
"""Columns that may hold turns or recorded steps."""
_LABELS = ("domain", "repo", "metadata")
"""Columns that say where a row belongs, not what it teaches."""


def check_domains(domains: Sequence[str]) -> None:
    """`invalid_field` unless they are one or more different known domains, or `repo_<name>`."""
    if not domains or len(set(domains)) != len(domains):
        raise fail("invalid_field", "domains must be one or more different names", fields=["domains"])
    for name in domains:
        if name not in DEFAULT and not re.fullmatch(r"repo_[A-Za-z0-9_.-]{1,80}", name):
            hint = f"Known: {', '.join(DEFAULT)}, and repo_<name>."
            raise fail("invalid_field", f"{name[:80]!r} is not a domain", hint, ["domains"])


def domain_of(row: Mapping[str, Any], wanted: Sequence[str]) -> str | None:
    """The one domain among `wanted` that a row belongs to, or None."""
    metadata = row.get("metadata")
    labels = {**(metadata if isinstance(metadata, dict) else {}), **row}
    stated = labels.get("domain")
    if isinstance(stated, str) and stated:
        return stated if stated in wanted else None
    repo = labels.get("repo")
    if isinstance(repo, str) and (name := REPO + re.sub(r"[^A-Za-z0-9_.-]", "_", Path(repo).name)) in wanted:
        return name
    calls = [name.lower() for name in tool_names(row)]
    if len(calls) >= MIN_STEPS and MULTI_STEP in wanted:
        return MULTI_STEP
    counts = Counter({name: sum(call in TOOLS[name] for call in calls) for name in wanted if name in TOOLS})
    best, most = counts.most_common(1)[0] if counts else ("", 0)
    return best if most else None


def tool_names(row: Mapping[str, Any]) -> Iterator[str]:
    """The tools that a row calls, in order; one for each call."""
    for column in _TURNS:
        turns = row.get(column)
        for turn in turns if isinstance(turns, list) else ():
            if not isinstance(turn, dict):
                continue
            calls = turn.get("tool_calls") or [turn.get("function_call")]
            for call in calls if isinstance(calls, list) else ():
                function = call.get("function", call) if isinstance(call, dict) else None
                if isinstance(function, dict) and isinstance(function.get("name"), str):
                    yield function["name"]
            if isinstance(recorded := turn.get("tool_name", turn.get("tool")), str) and turn.get("role") != "tool":
                yield recorded


Seen = dict[str, tuple[str, int]]
"""Digest of what a row teaches -> its domain and number."""


def part(path: Path, domains: Sequence[str], folder: Path, seen: Seen) -> dict[str, Any]:
    """Writes `<folder>/<domain>.jsonl` for each domain: {sha256, rows, left_out, parts: {domain: {path, sha256, rows}}}.

    `dataset_unreadable` if a row cannot be read, `invalid_field` if the same row stands in two domains: it would be
    trained on twice, and a gate of one domain would judge what another has seen.
    """
    counts, left_out = Counter[str](), 0
    findings: list[Finding] = []
    places = {name: folder / f"{name}.jsonl" for name in domains}
    with ExitStack() as stack:
        files = {name: stack.enter_context(place.open("wb")) for name, place in places.items()}
        for row in iter_rows(path, findings):
            name = domain_of(row.value, domains)
            if name is None:
                left_out += 1
                continue
            _check_disjoint(row.value, row.number, name, seen)
            files[name].write(msgspec.json.encode(row.value) + b"\n")
            counts[name] += 1
    for finding in findings:
        if finding.severity == Severity.ERROR:
            hint = f"`bashgym data check {path}` shows every such row."
            raise fail("dataset_unreadable", f"{path}: {finding.message}", hint, ["dataset_path"])
    parts = {
        name: {"path": str(place), "sha256": digest_file(place), "rows": counts[name]} for name, place in places.items()
    }
    return {
        "path": str(path),
        "sha256": digest_file(path),
        "rows": counts.total(),
        "left_out": left_out,
        "parts": parts,
    }


def _check_disjoint(row: Mapping[str, Any], number: int, name: str, seen: Seen) -> None:
    content = {key: value for key, value in row.items() if key not in _LABELS}
    other, first = seen.setdefault(digest_bytes(msgspec.json.encode(content, order="sorted")), (name, number))
    if other != name:
        message = f"rows {first} and {number} are the same, one in {other}, one in {name}"
        raise fail("invalid_field", message, "Leave one of them out: no row is in two domains.", ["dataset_path"])
