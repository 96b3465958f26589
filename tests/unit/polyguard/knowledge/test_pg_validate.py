"""Each kind of fault in the tables is found, and nothing that is not one."""

import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashgym.core.errors import BashGymError
from polyguard.knowledge import tables as module
from polyguard.knowledge.tables import Knowledge, read_tables
from polyguard.knowledge.validate import faults


def _set(table, index, key, value):
    def change(tables):
        tables[table][index][key] = value

    return change


def _twice(table):
    def change(tables):
        tables[table].append(copy.deepcopy(tables[table][0]))

    return change


def _drop(table):
    def change(tables):
        del tables[table]

    return change


BREAKS = {
    "table missing": (_drop("beers"), "missing required field `beers`"),
    "table of another type": (lambda t: t.update(groups=[]), "Expected `object`, got `array` - at `$.groups`"),
    "drug twice": (_twice("drugs"), "id warfarin is there 2 times"),
    "rule twice": (_twice("interactions"), "id ddi_001 is there 2 times"),
    "substitution twice": (_twice("substitutions"), "is there twice"),
    "upper-case id": (_set("drugs", 3, "id", "Edoxaban"), "at `$.drugs[3].id`"),
    "ATC": (_set("drugs", 0, "atc", "B01A"), "at `$.drugs[0].atc`"),
    "ACB": (_set("drugs", 0, "acb_score", 4), "at `$.drugs[0].acb_score`"),
    "QT": (_set("drugs", 0, "qt_category", "maybe"), "at `$.drugs[0].qt_category`"),
    "no use": (_set("drugs", 0, "indications", []), "at `$.drugs[0].indications`"),
    "taper rule": (_set("drugs", 0, "taper_rule", "slowly"), "slowly, which does not exist"),
    "dose order": (_set("drugs", 0, "typical_daily_mg", {"low": 5, "medium": 2, "high": 7}), "not in order"),
    "dose over maximum": (_set("drugs", 0, "max_daily_mg", 1), "over its maximum"),
    "older adults' maximum": (_set("drugs", 0, "older_adult_max_daily_mg", 99), "older adults' maximum"),
    "group without its drug": (lambda t: t["groups"]["ssri"].pop(), "ssri has other members"),
    "group of a drug": (lambda t: t["drugs"][0]["groups"].append("new"), "new has other members"),
    "interaction of nobody": (_set("interactions", 0, "b", "aspirin"), "ddi_001: aspirin does not exist"),
    "group of nobody": (_set("interactions", 0, "b", "group:nsaids"), "group:nsaids does not exist"),
    "flag of nobody": (_set("beers", 0, "target", "flag:wings"), "flag:wings does not exist"),
    "count of nobody": (_set("beers", 0, "target", "count:all"), "count:all does not exist"),
    "prefix of nobody": (_set("beers", 0, "target", "class:ssri"), "class:ssri does not exist"),
    "product of nobody": (lambda t: t["products"][0]["components"].append("gold"), "gold does not exist"),
    "severity": (_set("interactions", 0, "severity", "bad"), "at `$.interactions[0].severity`"),
    "Beers severity": (_set("beers", 0, "severity", "bad"), "at `$.beers[0].severity`"),
    "kind": (_set("renal_rules", 0, "kind", "stop"), "at `$.renal_rules[0].kind`"),
    "metric": (_set("renal_rules", 0, "metric", "gfr"), "at `$.renal_rules[0].metric`"),
    "operator": (_set("renal_rules", 0, "operator", "=<"), "at `$.renal_rules[0].operator`"),
    "reduction without dose": (_set("renal_rules", 1, "max_daily_mg", None), "a reduction needs a dose"),
    "taper step": (lambda t: t["taper_rules"]["opioid"].update(max_step_pct=30), "over the hard cap"),
    "product dose": (lambda t: t["products"][0]["daily_mg"].pop(), "each component has one dose"),
    "substitute for something else": (_set("substitutions", 0, "for", ["gout"]), "is not given for ['gout']"),
    "no source": (_set("interactions", 0, "sources", []), "at `$.interactions[0].sources`"),
    "unknown source": (_set("beers", 0, "source", "my_uncle"), "a source that is not listed"),
    "row of another form": (lambda t: t["drugs"][0].pop("flags"), "missing required field `flags`"),
    "row that is no object": (lambda t: t["interactions"].append(7), "Expected `object`, got `int`"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_table_is_refused(name):
    change, expected = BREAKS[name]
    tables = copy.deepcopy(read_tables())
    change(tables)
    found = faults(tables)
    assert any(expected in fault for fault in found), found


def test_the_tables_of_the_package_have_no_fault():
    assert faults(read_tables()) == []


def test_load_refuses_what_the_validator_refuses(monkeypatch):
    tables = read_tables()
    tables["drugs"][0]["atc"] = "?"
    monkeypatch.setattr(module, "read_tables", lambda: tables)
    with pytest.raises(BashGymError, match="atc") as error:
        module.load.__wrapped__()
    assert error.value.code == "invalid_field"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just(["x"]),
    st.just([7]),
    st.just(math.nan),
)


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


PLACES = [path for path in _places(read_tables()) if path]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), JUNK)
def test_tables_with_junk_in_them_are_judged_and_never_crash(path, junk):
    tables = read_tables()
    parent = tables
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = junk
    if not faults(tables):
        Knowledge(tables)
