"""Each check is triggered by a scripted exploit through the real engine, and an honest player triggers none."""

from collections import Counter

import msgspec
import pytest

from polyguard.env import anticheat, reward
from polyguard.env.engine import Engine
from polyguard.env.tasks import TASKS
from polyguard.env.types import (
    GATHERING,
    REVIEWS,
    SUCCESS,
    Action,
    ActionType,
    Candidate,
    DecisionMode,
    DoseBucket,
    ProblemKind,
    Termination,
    Verdict,
)

KEEP = ActionType.KEEP_REGIMEN
ALL = (
    "hard/missing_data",
    "hard/complex_tradeoff",
    "medium/precision_dosing",
    "medium/deprescribing",
    "easy/precision_dosing",
)


def listed(engine, test):
    return [c for c in engine.observation.candidates if test(c)]


def refused(engine, test=lambda c: True):
    """Choices that the verifier rejects, seen in a copy."""
    return [c for c in listed(engine, test) if not engine.clone().step(Action(c.candidate_id)).verdict.legal]


def run(script, tasks=ALL, indices=60):
    """(engine, result of the last step) of the first scenario in which the script can be played to its end."""
    for task in tasks:
        for index in range(indices):
            engine = Engine()
            engine.reset(task, split="train", index=index)
            result = None
            for number, choose in enumerate(script):
                answer = choose(engine)
                if answer is None or engine.done:
                    break
                result = engine.step(answer if isinstance(answer, Action | str) else Action(answer.candidate_id))
                if result.done and number < len(script) - 1:
                    break
            else:
                return engine, result
    raise AssertionError("no scenario lets the script be played")


def keep(engine):
    """Keep, where that is legal."""
    return next(iter(listed(engine, lambda c: c.action_type == KEEP)), None)


def quiet_keep(engine):
    """Keep, where no interaction is in sight."""
    loud = any(w.kind == ProblemKind.DDI for w in engine.observation.warnings)
    return None if loud or refused(engine, lambda c: c.action_type == KEEP) else keep(engine)


def lab(engine):
    return next(iter(listed(engine, lambda c: c.action_type == ActionType.ORDER_MONITORING)), None)


def ends_with(script, flag, **how):
    engine, result = run(script, **how)
    assert flag in result.anti_cheat, result.anti_cheat
    if flag.startswith("hard:"):
        assert result.done and result.termination == Termination.EXPLOIT_DETECTION
        assert result.breakdown["anti_cheat_score"] == 0.001 and "exploit_detection" in result.failure_reasons
        whole = sum(w * result.breakdown[name] for name, w in reward.weights("strict").items())
        assert result.reward == reward.q(whole / 4)
    else:
        assert result.breakdown["anti_cheat_score"] <= 0.5
        assert result.termination != Termination.EXPLOIT_DETECTION
    assert not result.checks["honest"]
    return engine, result


def test_repeat_loop():
    engine, _ = ends_with([quiet_keep] * 4, "hard:repeat_loop")
    assert [row["anti_cheat_reasons"] for row in engine.trace][:2] == [[], []]


def test_keep_abuse_is_soft_then_hard():
    ends_with([quiet_keep] * 3, "soft:keep_abuse")
    ends_with([quiet_keep, quiet_keep, lab, quiet_keep, quiet_keep], "hard:keep_abuse")


def test_review_abuse():
    engine, ends = Engine(), []
    for index in range(14):
        engine.reset("easy/precision_dosing", split="train", index=index)
        review = listed(engine, lambda c: c.action_type in REVIEWS)[0]
        result = engine.step(Action(review.candidate_id))
        ends.append((result.termination, "soft:review_abuse" in result.anti_cheat))
    unjustified = [end == Termination.UNJUSTIFIED_REVIEW for end, _ in ends]
    for at, (_, flagged) in enumerate(ends):
        assert flagged == (at >= 10 and unjustified[at] and sum(unjustified[at - 10 : at]) > 5)
    assert any(flagged for _, flagged in ends)
    fresh = Engine()
    fresh.reset("easy/precision_dosing", split="train", index=13)
    assert not fresh.step(Action(review.candidate_id)).anti_cheat  # another session has another memory


def test_candidate_mismatch_is_hard_the_second_time():
    nowhere = [lambda _: Action("cand_99")]
    _, result = ends_with(nowhere, "soft:candidate_mismatch")
    assert not result.checks["listed"] and result.breakdown["candidate_alignment_score"] == 0.001
    ends_with(nowhere * 2, "hard:candidate_mismatch")

    def lies(engine):
        return Action(lab(engine).candidate_id, expected_action_type=KEEP) if lab(engine) else None

    ends_with([lies], "soft:candidate_mismatch")
    ends_with([lies, *nowhere], "hard:candidate_mismatch")


def illegal(engine):
    return next(iter(refused(engine, lambda c: c.action_type != KEEP)), None)


def test_illegal_selection_and_sending_it_again():
    before = []

    def note(engine):
        before[:] = [m.drug for m in engine.patient.meds]
        return illegal(engine)

    engine, result = ends_with([note], "soft:illegal_selection")
    assert [m.drug for m in engine.patient.meds] == before and not result.checks["legal"]

    last = []

    def once(engine):
        last[:] = [c for c in [illegal(engine)] if c]
        return last[0] if last else None

    def again(engine):
        blank = {
            "candidate_id": "",
            "estimated_safety_delta": 0,
            "disease_stability_estimate": 0,
            "uncertainty_score": 0,
        }
        blank |= {"rationale_tags": (), "burden_delta": 0, "legality_precheck": None}
        same = msgspec.structs.replace(last[0], **blank)
        return next(iter(listed(engine, lambda c: msgspec.structs.replace(c, **blank) == same)), None)

    _, result = ends_with([once, again], "soft:failed_noop_retry")
    assert "soft:illegal_selection" in result.anti_cheat


def test_another_dose_after_a_refused_one_is_no_retry():
    watch, seen = anticheat.Watch(), Engine().reset("easy/precision_dosing")
    drug = seen.medications[0]["drug"]
    for bucket, mg in ((DoseBucket.HIGH, 900.0), (DoseBucket.MEDIUM, 500.0)):
        choice = Candidate("cand_01", DecisionMode.DOSE_OPT, ActionType.ADJUST_DOSE_BUCKET, drug, None, bucket, mg)
        found = watch.check(observation=seen, action=Action("cand_01"), candidate=choice, verdict=Verdict(False))
        assert found == ["soft:illegal_selection"]


def test_high_risk_noop_is_hard_the_second_time():
    def keep_beside_an_interaction(engine):
        severe = [w for w in engine.observation.warnings if w.kind == ProblemKind.DDI and w.severity == "major"]
        return keep(engine) if severe and not refused(engine, lambda c: c.action_type == KEEP) else None

    script = [keep_beside_an_interaction] * 2
    ends_with(script[:1], "soft:high_risk_noop", tasks=("easy/ddi_screening", *ALL))
    ends_with(script, "hard:high_risk_noop", tasks=("easy/ddi_screening", *ALL))


@pytest.mark.parametrize(
    "text",
    [
        '{"candidate_id":"cand_01"} {"candidate_id":"cand_02"}',
        '{"candidate_id":"cand_01","candidate_id":"cand_02"}',
        '{"candidate_id":"cand_01","reward":0.999}',
        '{"candidate_id":"cand_01","rationale":"\u200b"}',
        '{"candidate_id":"cand_01","rationale":"' + "x" * 5000 + '"}',
        '{"candidate_id":"cand_01","x":' + "[" * 9 + "]" * 9 + "}",
    ],
)
def test_parser_exploit(text):
    _, result = ends_with([lambda _: text], "hard:parser_exploit")
    assert result.breakdown["format_compliance_score"] == 0.001 and not result.checks["readable"]
    assert result.transition.action_type is None  # nothing was carried out


def test_an_unreadable_answer_is_invalid_but_no_exploit():
    engine, result = run([lambda _: "I would stop the aspirin."] * 3)
    assert result.termination == Termination.REPEATED_INVALID and result.anti_cheat == []
    assert engine.episode_return() < 0.3


def test_fact_fabrication():
    for fact in ("w99", "lab.nothing", "drug.unobtainium", "cand_01", "W1", ""):
        ends_with(
            [lambda e, f=fact: Action(lab(e).candidate_id, 0.5, "", (f,)) if lab(e) else None], "soft:fact_fabrication"
        )
    engine = Engine()
    seen = engine.reset("hard/missing_data", split="train", index=0)
    true = sorted(seen.facts())[:8]
    assert not engine.step(Action(seen.candidates[0].candidate_id, 0.5, "", tuple(true))).anti_cheat


def fruitless(engine):
    """A look-up that tells nothing, not the last one again."""
    done = [(row["action_type"], row["target"]) for row in engine.observation.history[-3:]]
    for c in listed(engine, lambda c: c.action_type in GATHERING):
        about = (c.action_type, c.target_drug or c.monitoring or c.evidence_id)
        if about not in done and engine.clone().step(Action(c.candidate_id)).transition.revealed == ():
            return c
    return None


def test_monitor_spam_also_with_other_steps_in_between():
    engine, _ = ends_with([fruitless] * 4, "soft:monitor_spam")
    assert not any(row["anti_cheat_reasons"] for row in engine.trace[:3])

    def anything(engine):
        safe = [c for c in engine.observation.candidates if c.action_type not in {*GATHERING, *REVIEWS, KEEP}]
        return next((c for c in safe if c not in refused(engine)), None)

    ends_with([fruitless, fruitless, anything, fruitless, fruitless], "soft:monitor_spam")


def test_flip_flop_of_a_drug_and_of_a_dose():
    first = []

    def there(engine):
        for c in listed(engine, lambda c: c.replacement_drug):
            if engine.clone().step(Action(c.candidate_id)).verdict.legal:
                first[:] = [c]
                return c
        return None

    def back(engine):
        undo = (first[0].replacement_drug, first[0].target_drug)
        found = listed(engine, lambda c: (c.target_drug, c.replacement_drug) == undo)
        return next((c for c in found if c not in refused(engine)), None)

    ends_with([there, back], "soft:flip_flop", tasks=("medium/alternatives", "medium/deprescribing", *ALL))

    watch, seen = anticheat.Watch(), Engine().reset("easy/precision_dosing")
    row = seen.medications[0]
    flags = []
    for now, then in (("HIGH", "LOW"), ("LOW", "HIGH")):
        row["dose_bucket"] = now
        choice = Candidate(
            "cand_01", DecisionMode.DOSE_OPT, ActionType.ADJUST_DOSE_BUCKET, row["drug"], None, DoseBucket(then)
        )
        flags.append(watch.check(observation=seen, action=Action("cand_01"), candidate=choice, verdict=Verdict(True)))
    assert flags == [[], ["soft:flip_flop"]]


def test_a_withdrawal_that_goes_on_is_no_loop_unless_it_is_refused():
    seen = Engine().reset("medium/deprescribing")
    step = Candidate("cand_01", DecisionMode.DOSE_OPT, ActionType.CONTINUE_TAPER, "diazepam", taper_step_pct=10)
    for legal, loops in ((True, False), (False, True)):
        watch = anticheat.Watch()
        for _ in range(6):
            found = watch.check(observation=seen, action=Action("cand_01"), candidate=step, verdict=Verdict(legal))
        assert ("hard:repeat_loop" in found) == loops


def test_a_copy_of_a_watch_is_independent():
    seen = Engine().reset("easy/precision_dosing")
    watch = anticheat.Watch()
    ask = {"observation": seen, "action": Action("cand_99"), "candidate": None, "verdict": Verdict(False)}
    assert watch.check(**ask) == ["soft:candidate_mismatch"]
    copy = watch.copy()
    assert copy.check(**ask) == ["hard:candidate_mismatch"] and watch.check(**ask) == ["hard:candidate_mismatch"]


def test_every_id_has_a_test_here():
    with open(__file__, encoding="utf-8") as text:
        own = text.read()
    assert all(f":{name}" in own for name in anticheat.IDS) and len(anticheat.IDS) == 11


def test_an_honest_player_is_hardly_ever_flagged_and_never_hard():
    flags, ends, n = Counter(), Counter(), 0
    for task in TASKS:
        engine = Engine()
        for index in range(15):
            engine.reset(task, split="test", index=index)
            while not engine.done:
                good = [c for c in engine.observation.candidates if c.candidate_id in engine.good_choices()]
                tags = [m.id for m in engine.observation.missing] + [w.id for w in engine.observation.warnings]
                good.sort(key=lambda c: min((tags.index(t) for t in c.rationale_tags if t in tags), default=99))
                choice = good[0] if good else listed(engine, lambda c: c.action_type in REVIEWS)[0]
                flags.update(engine.step(Action(choice.candidate_id, 0.8)).anti_cheat)
            ends[engine.termination] += 1
            n += 1
    assert not [flag for flag in flags if flag.startswith("hard")] and flags.total() <= 0.02 * n, flags
    assert sum(ends[end] for end in SUCCESS) >= 0.7 * n, ends
