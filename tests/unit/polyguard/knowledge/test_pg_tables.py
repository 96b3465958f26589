"""Look-ups over the tables: what a clinician would expect, and that everything is expanded."""

import itertools
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyguard.knowledge import SEVERITY_WEIGHT, load
from polyguard.knowledge.tables import Knowledge, read_tables

K = load()


def test_the_tables_are_big_enough_and_say_which_version_they_are():
    assert len(K.drugs) == 121
    assert len(K.pairs) >= 457
    assert len(K.version) == 12
    assert Knowledge(read_tables()).version == K.version


def test_loading_takes_less_than_a_tenth_of_a_second():
    code = "import time,polyguard.knowledge as k;t=time.perf_counter();k.load();print(time.perf_counter()-t)"
    best = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))
    assert best < 0.1


def test_importing_knowledge_pulls_in_no_heavy_module():
    code = (
        "import sys,polyguard.knowledge;print(*sorted({'torch','numpy','pandas','pyarrow','yaml'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code]).strip() == b""


@pytest.mark.parametrize(
    ("a", "b", "severity"),
    [
        ("warfarin", "ibuprofen", "major"),
        ("phenelzine", "sertraline", "contraindicated"),
        ("simvastatin", "clarithromycin", "contraindicated"),
        ("nitroglycerin", "sildenafil", "contraindicated"),
        ("lisinopril", "sacubitril_valsartan", "contraindicated"),
        ("azathioprine", "febuxostat", "contraindicated"),
        ("azathioprine", "allopurinol", "major"),
        ("colchicine", "clarithromycin", "major"),
        ("dabigatran", "verapamil", "moderate"),
        ("apixaban", "carbamazepine", "major"),
        ("pravastatin", "gemfibrozil", "major"),
        ("levothyroxine", "calcium_carbonate", "moderate"),
    ],
)
def test_a_pair_is_found_either_way_round(a, b, severity):
    found = K.interaction(a, b)
    assert found is K.interaction(b, a)
    assert found is not None
    assert found.severity == severity
    assert (found.a, found.b) == tuple(sorted((a, b)))


@pytest.mark.parametrize(
    ("a", "b"),
    [("warfarin", "diclofenac_topical"), ("edoxaban", "carbamazepine"), ("warfarin", "warfarin"), ("x", "y")],
)
def test_pairs_that_no_rule_covers_do_not_interact(a, b):
    assert K.interaction(a, b) is None


def test_the_highest_severity_of_all_rules_wins():
    # anticoagulant + anticoagulant is contraindicated; triamterene + potassium is covered by a major group rule as well.
    assert K.interaction("triamterene", "potassium_chloride").severity == "contraindicated"
    rows = K.tables["interactions"]
    covering = {row["severity"] for row in rows if "potassium_chloride" in (row["a"], row["b"])}
    assert "major" in covering


def test_every_pair_is_the_strongest_rule_that_a_slow_search_finds():
    def members(target):
        return K.groups[target[6:]] if target.startswith("group:") else {target}

    slow = {}
    for row in K.tables["interactions"]:
        for a, b in itertools.product(members(row["a"]), members(row["b"])):
            if a != b:
                weight = SEVERITY_WEIGHT[row["severity"]]
                slow[frozenset((a, b))] = max(slow.get(frozenset((a, b)), 0.0), weight)
    assert {pair: SEVERITY_WEIGHT[item.severity] for pair, item in K.pairs.items()} == slow


def test_the_pairs_of_a_regimen_are_named_once_each():
    regimen = ["warfarin", "ibuprofen", "sertraline", "metformin"]
    found = [(item.a, item.b) for item in K.interactions(regimen)]
    assert sorted(found) == [("ibuprofen", "sertraline"), ("ibuprofen", "warfarin"), ("sertraline", "warfarin")]


def test_a_dose_limit_that_settles_a_pair_is_a_number():
    found = K.interaction("simvastatin", "amlodipine")
    assert (found.cap_drug, found.cap_daily_mg) == ("simvastatin", 20)
    assert all(item.cap_drug in (item.a, item.b) for item in K.pairs.values() if item.cap_drug)


def test_duplicates_name_a_group_once():
    assert K.duplicates(["losartan", "valsartan", "metformin"]) == [("arb", ("losartan", "valsartan"))]
    assert K.duplicates(["lisinopril", "losartan"]) == [("rasi", ("lisinopril", "losartan"))]
    assert K.duplicates(["ibuprofen", "diclofenac_topical"]) == []
    assert K.duplicates(["aspirin_low_dose", "clopidogrel"]) == []
    assert K.duplicates(["sertraline", "sertraline"]) == []
    assert K.duplicates(["unknown_product", "sertraline"]) == []


def ids(*args, **kwargs):
    return {hit.id for hit in K.beers(*args, **kwargs)}


def test_a_beers_item_needs_its_condition_its_age_and_no_exemption():
    assert "beers_26" in ids(["naproxen"], ["heart_failure"], 70)
    assert "beers_26" not in ids(["naproxen"], ["hypertension"], 70)
    assert ids(["naproxen"], ["heart_failure"], 50) == set()
    assert "beers_15" in ids(["lorazepam"], [], 70)
    assert "beers_15" not in ids(["clonazepam"], ["seizure"], 70)
    assert "beers_05" in ids(["ticagrelor"], [], 75)
    assert "beers_05" not in ids(["ticagrelor"], [], 74)
    assert "beers_23" not in ids(["baclofen"], [], 80)
    assert "beers_51" in ids(["amitriptyline"], ["bph"], 80)
    assert "beers_51" not in ids(["oxybutynin"], ["bph"], 80)


def test_duration_and_company_decide_about_a_ppi():
    assert "beers_20" in ids(["omeprazole"], ["gerd"], 70)
    assert "beers_20" in ids(["omeprazole"], ["gerd"], 70, {"omeprazole": 56})
    assert "beers_20" not in ids(["omeprazole"], ["gerd"], 70, {"omeprazole": 55})
    assert "beers_20" not in ids(["omeprazole", "naproxen"], ["gerd"], 70)
    assert "beers_20" not in ids(["omeprazole"], ["gi_prophylaxis"], 70)


def test_a_hit_names_its_condition_and_severity():
    (hit,) = [hit for hit in K.beers(["haloperidol"], ["parkinson", "psychosis"], 80) if hit.kind == "drug_disease"]
    assert (hit.condition, hit.severity, hit.members) == ("parkinson", "major", ("haloperidol",))


def test_three_cns_active_drugs_and_a_high_anticholinergic_burden_are_findings():
    three = ["sertraline", "gabapentin", "oxycodone"]
    assert "beers_54" in ids(three, [], 70)
    assert "beers_54" not in ids(three[:2], [], 70)
    assert "beers_54" not in ids([*three[:2], "mirtazapine"], [], 70)
    assert "beers_55" in ids(["oxybutynin", "metoprolol"], [], 70)
    assert "beers_55" not in ids(["oxybutynin"], [], 70)


def test_liver_rules_without_a_dose_are_findings_at_any_age():
    hits = K.beers(["ketoconazole_oral"], ["chronic_liver_disease"], 40)
    assert [(hit.id, hit.severity) for hit in hits] == [("hepatic_06", "contraindicated")]
    assert ids(["acetaminophen"], ["chronic_liver_disease"], 40) == set()


@pytest.mark.parametrize(
    ("drug", "egfr", "crcl", "rule", "none", "most"),
    [
        ("metformin", 29, None, "renal_01", True, None),
        ("metformin", 30, None, "renal_02", False, 1000),
        ("metformin", 45, None, None, None, None),
        ("gabapentin", None, 59, "renal_12", False, 1400),
        ("gabapentin", None, 14, "renal_14", False, 300),
        ("rivaroxaban", None, 50, "renal_05", False, 15),
        ("rivaroxaban", None, 14, "renal_06", True, None),
        ("levetiracetam", None, 29, "renal_20", False, 1000),
        ("sitagliptin", 40, None, "renal_39", False, 50),
        ("sitagliptin", 29, None, "renal_40", False, 25),
        ("naproxen", 80, 29, "renal_11", True, None),
        ("allopurinol", 40, None, "renal_35", False, None),
        ("apixaban", 10, 10, None, None, None),
        ("amlodipine", 5, 5, None, None, None),
    ],
)
def test_the_strictest_renal_rule_is_given(drug, egfr, crcl, rule, none, most):
    hits = K.renal(drug, egfr, crcl)
    assert [hit.rule_id for hit in hits] == ([rule] if rule else [])
    if hits:
        assert (hits[0].contraindicated, hits[0].max_daily_mg) == (none, most)


def test_apixaban_is_reduced_on_two_of_three_in_atrial_fibrillation_only():
    two = {"age": 80, "weight_kg": 60, "creatinine": 1.0}
    assert K.renal("apixaban", 60, 60, **two)[0].max_daily_mg == 5
    assert K.renal("apixaban", 60, 60, **{**two, "weight_kg": 61}) == []
    assert K.renal("apixaban", 60, 60, conditions=["vte"], **two) == []


def test_a_stricter_kidney_never_allows_more():
    for drug in K.drugs:
        caps = [K.dose_cap(drug, 50, value, value) for value in (90, 75, 59, 44, 29, 14, 9)]
        known = [cap for cap in caps if cap is not None]
        assert known == sorted(known, reverse=True), drug


def test_the_dose_cap_is_the_lowest_limit():
    assert K.dose_cap("citalopram", 60, None, None) == 40
    assert K.dose_cap("citalopram", 61, None, None) == 20
    assert K.dose_cap("tramadol", 75, None, None) == 400
    assert K.dose_cap("tramadol", 76, None, None) == 300
    assert K.dose_cap("tramadol", 80, 25, 25) == 200
    assert K.dose_cap("acetaminophen", 50, None, None, ["chronic_liver_disease"]) == 2000
    assert K.dose_cap("metformin", 70, 20, 20) == 0.0
    assert K.dose_cap("oxycodone", 70, 20, 20) is None
    assert K.dose_cap("unknown_product", 70, 20, 20) is None


def test_buckets_have_doses():
    assert K.bucket_mg("metformin", "LOW") == 500
    assert K.bucket_mg("metformin", "HIGH") == 2000
    assert K.bucket_mg("metformin", "HOLD") == 0.0
    assert K.bucket_mg("metformin", "NA") is None
    assert K.bucket_mg("insulin_glargine", "LOW") is None


def test_what_must_be_tapered_says_how():
    assert K.taper("lorazepam").hard_cap_step_pct == 25
    assert K.taper("omeprazole").optional
    assert K.taper("ibuprofen") is None
    assert K.taper("unknown_product") is None


def test_a_substitute_is_given_for_what_the_row_says():
    for drug in K.drugs:
        for item in K.substitutes(drug):
            assert item.to != drug
            assert item.indications
            assert set(item.indications) <= set(K.indications(item.to)) & set(K.indications(drug))
    assert [item.to for item in K.substitutes("temazepam")] == ["melatonin"]
    within = {item.to: item.within_class for item in K.substitutes("ibuprofen")}
    assert within == {"acetaminophen": False, "diclofenac_topical": False, "celecoxib": True}


def test_a_drug_that_must_not_be_used_in_older_adults_has_a_way_out():
    """Every PIM and drug-disease row of severity major about a drug: stopping is one way, replacing another."""
    stuck = {
        name
        for name in K.drugs
        for hit in K.beers([name], K.conditions(), 80)
        if hit.severity in ("major", "contraindicated") and hit.condition is None
        if not K.substitutes(name)
    }
    # PIMs that are stopped or tapered, for lack of a row that replaces them.
    assert stuck <= {"quetiapine"}


def test_monitoring_and_indications():
    assert [rule.lab for rule in K.monitoring("lithium")] == ["lithium_level", "creatinine", "tsh"]
    assert K.monitoring("loratadine") == []
    assert "digoxin" in K.drugs_for("atrial_fibrillation")
    assert K.drugs_for("no_such_thing") == ()
    assert set(K.labs()) == {rule.lab for drug in K.drugs for rule in K.monitoring(drug)}
    assert {"dementia", "hypertension", "ckd_stage4_plus"} <= set(K.conditions())


def test_burden_is_the_formula_of_the_table():
    found = K.burden(["oxybutynin", "sertraline", "lorazepam", "unknown_product"], 2)
    assert (found["n_drugs"], found["acb_total"], found["cns_active_count"], found["beers_hits"]) == (4, 3, 2, 2)
    assert found["index"] == pytest.approx(0.35 * 4 / 12 + 0.25 * 3 / 6 + 0.20 * 2 / 4 + 0.20 * 2 / 4)
    assert K.burden(["oxybutynin"] * 20, 9)["index"] == pytest.approx(0.80)


def test_products_come_apart_into_known_drugs_with_usual_doses():
    for item in K.products.values():
        assert item.id not in K.drugs
        for name, daily_mg in zip(item.components, item.daily_mg, strict=True):
            cap = K.drugs[name].max_daily_mg
            assert cap is None or daily_mg <= cap


def test_a_regimen_is_judged_in_a_fraction_of_a_millisecond():
    regimen = ["warfarin", "ibuprofen", "lorazepam", "oxycodone", "gabapentin", "amitriptyline", "metformin", "digoxin"]
    begun = time.perf_counter()
    for _ in range(200):
        K.interactions(regimen)
        K.duplicates(regimen)
        K.beers(regimen, ("dementia", "falls_fractures"), 80)
    assert (time.perf_counter() - begun) / 200 < 0.001


REGIMENS = st.lists(st.sampled_from([*K.drugs, "unknown_product"]), max_size=12, unique=True)


@settings(max_examples=60, deadline=None)
@given(
    REGIMENS,
    st.randoms(use_true_random=False),
    st.floats(18, 100),
    st.sets(st.sampled_from(K.conditions()), max_size=5),
)
def test_what_is_wrong_does_not_depend_on_the_order_of_the_regimen(regimen, random, age, conditions):
    other = list(regimen)
    random.shuffle(other)

    def seen(drugs):
        return (
            {item.rule_id + item.a + item.b for item in K.interactions(drugs)},
            {(group, frozenset(members)) for group, members in K.duplicates(drugs)},
            {(hit.id, frozenset(hit.members), hit.condition) for hit in K.beers(drugs, conditions, age)},
            K.burden(drugs, 0),
        )

    assert seen(regimen) == seen(other)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_names_that_no_table_has_are_no_error(a, b):
    assert K.interaction(a, b) is None
    assert K.renal(a, 10, 10) == []
    assert (K.taper(a), K.bucket_mg(a, b), K.dose_cap(a, 80, 10, 10)) == (None, 0.0 if b == "HOLD" else None, None)
    assert (K.substitutes(a), K.monitoring(a), K.indications(a), K.drugs_for(a)) == ([], [], (), ())
    assert K.beers([a, b], [b], 80) == []
    assert K.duplicates([a, b]) == []
