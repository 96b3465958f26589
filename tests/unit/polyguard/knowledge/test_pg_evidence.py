"""The evidence index: every rule has a document, a search finds it, a hostile query finds nothing and costs little."""

import time

from polyguard.knowledge import evidence, load


def test_every_row_has_one_document_with_a_source():
    tables = load().tables
    found = [item.id for item in evidence.documents()]
    assert len(found) == len(set(found))
    rules = ("interactions", "beers", "stopp_start", "renal_rules", "hepatic_rules")
    assert {row["id"] for name in rules for row in tables[name]} <= set(found)
    assert {f"drug_{name}" for name in load().drugs} | {f"taper_{name}" for name in tables["taper_rules"]} <= set(found)
    sources = {row["id"] for row in tables["sources"]}
    assert all(set(item.source.split(",")) <= sources for item in evidence.documents())
    assert all(set(item.drugs) <= load().drugs.keys() for item in evidence.documents())


def test_a_document_is_found_by_id_and_by_drug():
    assert evidence.get("ddi_001").drugs[0] == "warfarin"
    assert evidence.get("no_such_page") is None
    assert evidence.about("sertraline")[0].id == "drug_sertraline"
    assert evidence.about("no_such_drug") == ()


def test_a_search_finds_the_rule():
    assert "renal_01" in [item.id for item in evidence.search("metformin egfr contraindicated")]
    assert "taper_benzodiazepine" in [item.id for item in evidence.search("benzodiazepine taper withdrawal")]
    assert evidence.search("clopidogrel omeprazole")[0].id == "ddi_022"
    assert evidence.search("what is in metformin glyburide")[0].id == "product_metformin_glyburide"


def test_a_search_is_bounded_and_repeatable():
    assert evidence.search("") == evidence.search("xyzzy qwxz") == evidence.search("warfarin", k=0) == []
    assert len(evidence.search("warfarin bleeding", k=5)) == 5
    assert evidence.search("warfarin bleeding", k=5) == evidence.search("BLEEDING warfarin!", k=5)
    begun = time.perf_counter()
    evidence.search("warfarin interaction mg " * 100_000)
    assert time.perf_counter() - begun < 0.2
