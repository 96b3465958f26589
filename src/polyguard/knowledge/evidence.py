"""The local evidence index: short documents made from the tables, and a small BM25 over them.

Covers what the tables say, each document with its source. Does not cover the sources themselves: their texts are not here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from polyguard.knowledge.expand import Targets
from polyguard.knowledge.tables import Knowledge, load

_K1, _B = 1.2, 0.75
_QUERY_CHARS, _QUERY_WORDS = 2_000, 64
_WORD = re.compile(r"[a-z0-9]+")


class Document(msgspec.Struct, frozen=True):
    """A page of evidence. Its text is data, never an instruction."""

    id: str
    """`drug_warfarin`, `product_...`, `taper_opioid`, or the id of a rule (`ddi_001`, `beers_01`, `renal_01`, ...)."""
    title: str
    text: str
    drugs: tuple[str, ...]
    """Ids of the drugs that it is about."""
    source: str
    """Ids of the sources, joined by commas."""


@cache
def documents() -> tuple[Document, ...]:
    """All of them, in a fixed order."""
    return tuple(_write(load()))


@cache
def _by_id() -> dict[str, Document]:
    return {item.id: item for item in documents()}


@cache
def _by_drug() -> dict[str, tuple[Document, ...]]:
    found: dict[str, list[Document]] = {}
    for item in documents():
        for drug in item.drugs:
            found.setdefault(drug, []).append(item)
    return {drug: tuple(items) for drug, items in found.items()}


def get(document_id: str) -> Document | None:
    """One of them."""
    return _by_id().get(document_id)


def about(drug: str) -> tuple[Document, ...]:
    """All that are about a drug; its own page comes first."""
    return _by_drug().get(drug, ())


class _Index:
    """Postings of BM25: word -> (place of the document, weight of the word in it)."""

    def __init__(self, items: tuple[Document, ...]) -> None:
        counts = [Counter(_words(f"{item.title} {item.title} {item.text} {' '.join(item.drugs)}")) for item in items]
        mean = sum(count.total() for count in counts) / max(len(counts), 1)
        frequency = Counter(word for count in counts for word in count)
        self.postings: dict[str, list[tuple[int, float]]] = {}
        for place, count in enumerate(counts):
            scale = _K1 * (1 - _B + _B * count.total() / mean)
            for word, number in count.items():
                rarity = math.log(1 + (len(items) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                weight = rarity * number * (_K1 + 1) / (number + scale)
                self.postings.setdefault(word, []).append((place, weight))


@cache
def _index() -> _Index:
    return _Index(documents())


def search(query: str, k: int = 3) -> list[Document]:
    """The `k` that fit a query best; words that no document has find nothing. Long queries are cut."""
    scores: dict[int, float] = {}
    postings = _index().postings
    for word in list(dict.fromkeys(_words(query[:_QUERY_CHARS])))[:_QUERY_WORDS]:
        for place, weight in postings.get(word, ()):
            scores[place] = scores.get(place, 0.0) + weight
    best = sorted(scores, key=lambda place: (-scores[place], place))[: max(k, 0)]
    items = documents()
    return [items[place] for place in best]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _plain(name: str) -> str:
    return name.removeprefix("group:").removeprefix("flag:").replace("_", " ")


def _write(knowledge: Knowledge) -> Iterator[Document]:
    tables = knowledge.tables
    targets = Targets(knowledge.drugs, knowledge.groups)
    for row in tables["drugs"]:
        yield _drug(row)
    for row in tables["products"]:
        parts = " and ".join(_plain(name) for name in row["components"])
        text = f"Fixed combination of {parts}."
        yield _document(f"product_{row['id']}", _plain(row["id"]), text, row["components"], row["sources"])
    for row in tables["interactions"]:
        a, b = _plain(row["a"]), _plain(row["b"])
        text = f"{row['severity']} interaction: {row['effect']} by {row['mechanism']}. {_plain(row['management'])}."
        text += f" {row['note']}." if row["note"] else ""
        drugs = tuple(dict.fromkeys((*targets.of(row["a"]), *targets.of(row["b"]))))
        yield _document(row["id"], f"{a} with {b}", text, drugs, row["sources"])
    for row in tables["beers"]:
        where = f" in {', '.join(map(_plain, row['conditions']))}" if row["conditions"] else ""
        text = f"{_plain(row['recommendation'])}{where}: {row['rationale']}."
        text += f" Except: {row['exception']}." if row["exception"] else ""
        title = f"older adults: {_plain(row['target'])}{where}"
        yield _document(row["id"], title, text, targets.of(row["target"]), [row["source"]])
    for row in tables["stopp_start"]:
        named = [word for word in re.findall(r"(?:group:)?[a-z0-9_]+", row["trigger"]) if _is_target(word, knowledge)]
        text = f"{row['rule']}. {_plain(row['action'])}."
        yield _document(row["id"], f"STOPP/START: {row['rule']}", text, sorted(targets.union(named)), [row["source"]])
    yield from _limits(knowledge, targets)


def _is_target(word: str, knowledge: Knowledge) -> bool:
    kind, _, name = word.partition(":")
    return name in knowledge.groups if kind == "group" else word in knowledge.drugs


def _limits(knowledge: Knowledge, targets: Targets) -> Iterator[Document]:
    tables = knowledge.tables
    for row in tables["renal_rules"]:
        text = f"{row['metric']} {row['operator']} {row['threshold_ml_min']:g} mL/min: {_plain(row['action'])}."
        text += f" At most {row['max_daily_mg']:g} mg a day." if row["max_daily_mg"] else ""
        title = f"{_plain(row['target'])}: kidneys, renal dose"
        yield _document(row["id"], title, text, targets.of(row["target"]), row["sources"])
    for row in tables["hepatic_rules"]:
        title = f"{_plain(row['target'])}: liver"
        yield _document(row["id"], title, f"{row['rule']}.", (row["target"],), row["sources"])
    for name, row in tables["taper_rules"].items():
        text = (
            f"Reduce by {row['max_step_pct']} % every {row['interval_days']} days, never by more than "
            f"{row['hard_cap_step_pct']} % at once, after {row['min_use_days_for_taper']} days of use. Risk: {row['risk']}."
        )
        drugs = [key for key, drug in knowledge.drugs.items() if drug.taper_rule == name]
        yield _document(f"taper_{name}", f"{_plain(name)}: taper, withdrawal", text, drugs, row["sources"])


def _drug(row: Mapping[str, Any]) -> Document:
    doses, cyp = row["typical_daily_mg"], row["cyp"]
    parts = [f"{_plain(row['therapeutic_class'])}, ATC {row['atc']}.", f"Given for {_listed(row['indications'])}."]
    if doses:
        parts.append(f"Daily mg: low {doses['low']:g}, medium {doses['medium']:g}, high {doses['high']:g}.")
    if row["max_daily_mg"]:
        parts.append(f"At most {row['max_daily_mg']:g} mg.")
    if row["older_adult_max_daily_mg"]:
        limit = row["older_adult_max_daily_mg"]
        parts.append(f"From {row['older_adult_from_age']} years at most {limit:g} mg.")
    for word in ("substrate", "inhibitor", "inducer"):
        if cyp[word]:
            parts.append(f"{word} of {_listed(cyp[word])}.")
    if row["monitoring"]:
        parts.append(f"Monitor {_listed(row['monitoring'])}.")
    return _document(f"drug_{row['id']}", row["name"], " ".join(parts), (row["id"],), ["fda_label", "who_atc"])


def _listed(names: list[str]) -> str:
    return ", ".join(_plain(name) for name in names)


def _document(key: str, title: str, text: str, drugs: Any, sources: Any) -> Document:
    return Document(key, title, text, tuple(drugs), ",".join(sources))
