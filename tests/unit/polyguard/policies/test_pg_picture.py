"""The agents' model of a patient: what it finds, and what it says that a choice would do."""

from __future__ import annotations

import pytest
from pg_made import act, rx, seen, warn

from polyguard.env.types import ActionType, DoseBucket, ProblemKind, Severity
from polyguard.policies.picture import Lenses, Picture, total

SWAP = ActionType.SUBSTITUTE_WITHIN_CLASS


def test_a_pair_is_found_without_a_warning_and_stopping_one_drug_ends_it() -> None:
    stop = act(3, ActionType.STOP_DRUG, "naproxen")
    picture = Picture(seen([rx("warfarin", 3, indication="atrial_fibrillation"), rx("naproxen", 500)], [stop]))
    assert "ddi:naproxen+warfarin" in picture.now
    assert "ddi:naproxen+warfarin" not in picture.findings(picture.after(stop))
    assert picture.gain(stop) > 0


def test_without_the_graph_only_warned_pairs_are_known() -> None:
    drugs = [rx("warfarin", 3), rx("naproxen", 500)]
    blind = Lenses(graph=False)
    assert not [key for key in Picture(seen(drugs, []), blind).now if key.startswith(("ddi", "warned"))]
    warned = seen(drugs, [], warnings=[warn(1, ProblemKind.DDI, Severity.MAJOR, "naproxen", "warfarin")])
    assert Picture(warned, blind).now["warned:w1"] == 0.7
    assert "warned:w1" not in Picture(warned).now  # the table explains it: it must not count twice


def test_leaving_a_vital_indication_bare_is_a_finding() -> None:
    stop = act(3, ActionType.STOP_DRUG, "levothyroxine")
    picture = Picture(seen([rx("levothyroxine", 0.1, indication="hypothyroidism")], [stop]))
    assert picture.gain(stop) < 0
    assert picture.creates(stop) == ["untreated:hypothyroidism"]


def test_an_abrupt_stop_is_a_fault_and_a_short_use_is_not() -> None:
    stop = act(3, ActionType.STOP_DRUG, "diazepam")
    assert Picture(seen([rx("diazepam", 5)], [stop])).faults(stop) == ["diazepam has to be tapered"]
    assert Picture(seen([rx("diazepam", 5, duration_days=3)], [stop])).faults(stop) == []


def test_a_taper_step_over_the_hard_cap_is_a_fault() -> None:
    wild = act(3, ActionType.INITIATE_TAPER, "diazepam", taper_step_pct=100.0)
    mild = act(4, ActionType.INITIATE_TAPER, "diazepam", taper_step_pct=10.0)
    picture = Picture(seen([rx("diazepam", 5)], [wild, mild]))
    assert picture.faults(wild)
    assert not picture.faults(mild)
    assert picture.gain(mild) > 0  # a criterion about a drug that is being withdrawn is dealt with


def test_a_dose_over_the_renal_cap_is_a_finding_and_a_smaller_one_mends_it() -> None:
    picture = Picture(seen([rx("gabapentin", 3600)], [], egfr=20, crcl=18))
    assert picture.now["dose:gabapentin"] == pytest.approx(0.7)
    cap = picture.cap("gabapentin")
    assert cap is not None
    lower = act(3, ActionType.ADJUST_DOSE_BUCKET, "gabapentin", dose_bucket=DoseBucket.LOW, daily_mg=cap)
    higher = act(4, ActionType.ADJUST_DOSE_BUCKET, "gabapentin", dose_bucket=DoseBucket.HIGH, daily_mg=3600.0)
    assert picture.gain(lower) >= 0.7
    assert not picture.faults(lower)
    assert picture.faults(higher)


def test_a_bucket_stands_for_its_dose_where_no_dose_is_listed() -> None:
    picture = Picture(seen([rx("gabapentin", None, dose_bucket="HIGH")], [], egfr=20, crcl=18))
    assert "dose:gabapentin" in picture.now


@pytest.mark.parametrize(
    ("target", "new", "indication", "fault"),
    [
        ("lorazepam", "warfarin", "anxiety", "not given for"),
        ("atorvastatin", "simvastatin", "hyperlipidemia", "must not be given with another drug"),
    ],
)
def test_swaps_that_would_be_refused(target: str, new: str, indication: str, fault: str) -> None:
    swap = act(3, SWAP, target, replacement_drug=new)
    picture = Picture(seen([rx(target, None, indication=indication), rx("clarithromycin", 500)], [swap]))
    assert any(fault in text for text in picture.faults(swap))


def test_keeping_a_contraindication_is_a_fault() -> None:
    drugs = [rx("simvastatin", 20), rx("clarithromycin", 500)]
    picture = Picture(seen(drugs, []))
    assert picture.faults(picture.observation.candidates[0]) == ["a contraindication would stay"]


def test_unknown_products_and_missing_kidneys_are_no_reason_to_fail() -> None:
    picture = Picture(seen([rx("mystery_mix", None, dose_bucket="NA")], [], egfr=None, crcl=None))
    assert total(picture.now) == 0


def test_what_must_be_resolved_counts_fully_and_the_rest_for_a_quarter() -> None:
    assert total({"a": 1.0, "b": 0.7, "c": 0.35, "d": 0.1}) == pytest.approx(1.7 + 0.25 * 0.45)
