"""Whether knowledge tables can be trusted to hold together: ids, references, dose order, codes, sources.

It cannot say whether a rule is right: that is a matter of reading, and `CHANGES.md` says what was read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from polyguard.knowledge.rows import SEVERITY_WEIGHT
from polyguard.knowledge.schema import Tables

COUNTS = ("cns_active>=3", "acb>=3_total")
"""What a `count:` target may say."""


def faults(tables: Mapping[str, Any]) -> list[str]:
    """What is wrong, one sentence each; empty: nothing. The first fault of form hides all others."""
    try:
        msgspec.convert(tables, Tables)
    except msgspec.ValidationError as error:
        return [f"form: {error}"]
    return [fault for check in _CHECKS for fault in check(tables)]


def _ids(tables: Mapping[str, Any]) -> Iterator[str]:
    for name in (
        "drugs",
        "products",
        "interactions",
        "beers",
        "stopp_start",
        "renal_rules",
        "hepatic_rules",
        "sources",
    ):
        for key, count in Counter(row["id"] for row in tables[name]).items():
            if count > 1:
                yield f"{name}: id {key} is there {count} times"


def _drugs(tables: Mapping[str, Any]) -> Iterator[str]:
    groups: dict[str, set[str]] = {}
    for row in tables["drugs"]:
        key = row["id"]
        for group in row["groups"]:
            groups.setdefault(group, set()).add(key)
        if row["taper_rule"] is not None and row["taper_rule"] not in tables["taper_rules"]:
            yield f"drugs: {key} names the taper rule {row['taper_rule']}, which does not exist"
        yield from _doses(row)
    for name in sorted(groups.keys() | tables["groups"].keys()):
        if sorted(groups.get(name, ())) != sorted(tables["groups"].get(name, ())):
            yield f"groups: {name} has other members than its drugs say"


def _doses(row: Mapping[str, Any]) -> Iterator[str]:
    key, doses, most = row["id"], row["typical_daily_mg"], row["max_daily_mg"]
    if doses is None:
        return
    if not doses["low"] <= doses["medium"] <= doses["high"]:
        yield f"drugs: doses of {key} are not in order"
    if most is not None and doses["high"] > most:
        yield f"drugs: the high dose of {key} is over its maximum"
    older = row["older_adult_max_daily_mg"]
    if older is not None and most is not None and older > most:
        yield f"drugs: the older adults' maximum of {key} is over its maximum"


def _targets(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(where, target) of every reference to drugs."""
    for row in tables["interactions"]:
        yield row["id"], row["a"]
        yield row["id"], row["b"]
        if row.get("cap"):
            yield row["id"], row["cap"]["drug"]
    for row in tables["beers"]:
        yield from (
            (row["id"], target) for target in (row["target"], *row["with"], *row["unless_with"], *row["except"])
        )
    for row in (*tables["renal_rules"], *tables["hepatic_rules"]):
        yield row["id"], row["target"]
    for row in tables["monitoring_rules"]:
        yield f"monitoring of {row['lab']}", row["target"]
    for row in tables["substitutions"]:
        yield "substitutions", row["from"]
        yield "substitutions", row["to"]
    for row in tables["products"]:
        yield from ((row["id"], name) for name in row["components"])
    yield from (("duplicate_therapy", f"group:{row['group']}") for row in tables["duplicate_therapy"])
    yield from (("class_groups", f"group:{name}") for name in tables["class_groups"])
    for row in tables["stopp_start"]:
        yield from ((row["id"], match) for match in re.findall(r"group:[a-z0-9_]+", row["trigger"]))


def _references(tables: Mapping[str, Any]) -> Iterator[str]:
    drugs = {row["id"] for row in tables["drugs"]}
    all_flags = {flag for row in tables["drugs"] for flag in row["flags"]}
    for where, target in _targets(tables):
        kind, _, name = target.partition(":")
        known = {"group": tables["groups"], "flag": all_flags, "count": COUNTS}
        if not (target in drugs if not name else name in known.get(kind, ())):
            yield f"{where}: {target} does not exist"


def _rules(tables: Mapping[str, Any]) -> Iterator[str]:
    for name in ("renal_rules", "hepatic_rules"):
        for row in tables[name]:
            if (row["kind"] == "reduce") != (row["max_daily_mg"] is not None):
                yield f"{row['id']}: a reduction needs a dose, and nothing else has one"
    for name, row in tables["taper_rules"].items():
        if row["max_step_pct"] > row["hard_cap_step_pct"]:
            yield f"taper {name}: the usual step is over the hard cap"
    for row in tables["products"]:
        if len(row["components"]) != len(row["daily_mg"]):
            yield f"{row['id']}: each component has one dose"
    for row in tables["interactions"]:
        if row.get("cap") and row["cap"]["drug"] not in (row["a"], row["b"]):
            yield f"{row['id']}: the capped drug is neither of the two"
    if tables["encoding"].get("severity_scale") != SEVERITY_WEIGHT:
        yield "encoding: the severity scale is not the one in use"
    counts = {row["target"] for row in tables["beers"]}
    for name in COUNTS:
        if f"count:{name}" not in counts:
            yield f"beers: no row for count:{name}"


def _substitutions(tables: Mapping[str, Any]) -> Iterator[str]:
    indications = {row["id"]: set(row["indications"]) for row in tables["drugs"]}
    seen: set[tuple[str, str]] = set()
    for row in tables["substitutions"]:
        key = (row["from"], row["to"])
        where = f"substitution {key[0]} -> {key[1]}"
        if key in seen:
            yield f"{where} is there twice"
        seen.add(key)
        group = tables["groups"].get(row["from"].removeprefix("group:"), [])
        old = group if row["from"].startswith("group:") else [row["from"]]
        wanted = set(row["for"])
        if not wanted <= indications.get(row["to"], set()):
            yield f"{where}: the new drug is not given for {sorted(wanted)}"
        if not any(wanted & indications.get(name, set()) for name in old):
            yield f"{where}: the old drug is not given for {sorted(wanted)}"


def _sources(tables: Mapping[str, Any]) -> Iterator[str]:
    known = {row["id"] for row in tables["sources"]}
    named: list[tuple[str, Iterable[str]]] = [
        (row["id"], [row["source"]]) for row in (*tables["beers"], *tables["stopp_start"])
    ]
    for name in ("interactions", "renal_rules", "hepatic_rules", "products", "substitutions", "monitoring_rules"):
        named += [(str(row.get("id", name)), row["sources"]) for row in tables[name]]
    named += [(f"taper {name}", row["sources"]) for name, row in tables["taper_rules"].items()]
    for where, sources in named:
        if not set(sources) <= known:
            yield f"{where}: a source that is not listed"


_CHECKS = (_ids, _drugs, _references, _rules, _substitutions, _sources)
