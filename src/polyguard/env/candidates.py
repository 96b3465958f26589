"""The choices of a step: for what is visibly wrong its good answers, and beside each of them wrong ones that look alike.

A choice is good if it is legal, ends its problem and makes no serious new one. Whether one is good is not shown: tags name
what it is about, and a wrong answer to a warning carries the same tag. The order is shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from polyguard.env.legality import DISPENSING_RECORD, judge, relevant_labs, same_class
from polyguard.env.patient import VITAL, Med, Patient
from polyguard.env.problems import HAZARD, SERIOUS, must_taper
from polyguard.env.types import ActionType, Candidate, DecisionMode, DoseBucket, Problem, ProblemKind
from polyguard.knowledge.tables import Knowledge, load

if TYPE_CHECKING:
    from numpy.random import Generator

LEAST = 6
MOST = {"easy": 8, "medium": 11, "hard": 14}
"""How many choices a step has, by difficulty."""
MOST_LISTED, MOST_NEAR = 4, 2
"""Replacements of one drug that are looked at."""
MOST_KNOWN = 128
"""Answers that a patient keeps in `fits`: they are the same in every episode of a scenario."""
_BUCKETS = (DoseBucket.LOW, DoseBucket.MEDIUM, DoseBucket.HIGH)
NOISE = {"easy": 0.02, "medium": 0.06, "hard": 0.12}
"""Standard deviation of the estimates."""
_REMOVED_SHARE = {
    ActionType.STOP_DRUG: 1.0,
    ActionType.SUBSTITUTE_WITHIN_CLASS: 1.0,
    ActionType.RECOMMEND_ALTERNATIVE: 1.0,
    ActionType.HOLD_DOSE: 1.0,
    ActionType.ADJUST_DOSE_BUCKET: 0.4,
    ActionType.INITIATE_TAPER: 0.4,
}
"""How much of a drug's dangers the estimate takes for gone."""


@cache
def _swaps(drug: str, indication: str) -> tuple[Candidate, ...]:
    """Candidates that put another drug in its place: those listed, then a few of the class, which mostly have its fault."""
    knowledge = load()
    listed = {item.to: item.within_class for item in knowledge.substitutes(drug)}
    near = [n for n in knowledge.drugs_for(indication) if n not in listed and same_class(n, drug, knowledge)]
    fitting = [(name, within) for name, within in listed.items() if indication in knowledge.indications(name)]
    chosen = [*fitting[:MOST_LISTED], *((name, True) for name in near if name != drug)][: MOST_LISTED + MOST_NEAR]
    return tuple(_swap(drug, name, within, knowledge) for name, within in chosen)


def _swap(old: str, new: str, within: bool, knowledge: Knowledge) -> Candidate:
    kind = ActionType.SUBSTITUTE_WITHIN_CLASS if within else ActionType.RECOMMEND_ALTERNATIVE
    mg = knowledge.bucket_mg(new, DoseBucket.LOW)
    labs = tuple(rule.lab for rule in knowledge.monitoring(new))
    bucket = DoseBucket.LOW if mg else DoseBucket.NA
    return Candidate("", DecisionMode.REGIMEN_OPT, kind, old, new, bucket, mg, required_monitoring=labs)


class Option(msgspec.Struct):
    """A candidate in the making."""

    candidate: Candidate
    good: bool
    problem: str
    """Id of the problem that it answers; empty for those that answer none."""


class Desk:
    """Makes the options of one situation."""

    def __init__(self, patient: Patient, knowledge: Knowledge, seen: Sequence[Problem]) -> None:
        self.patient, self.knowledge, self.seen = patient, knowledge, seen
        self.drugs = patient.active(seen=True)
        self._regimen = (*self.drugs, patient.creatinine(seen=True))
        self._vital = {name for name in patient.treated if name in VITAL}
        self._covering = {drug: self._vital.intersection(knowledge.indications(drug)) for drug in self.drugs}

    def answers(self, problem: Problem) -> Iterator[Option]:
        """Good and bad answers to one problem, the good ones first."""
        found = list(self._answers(problem))
        yield from sorted(found, key=lambda option: not option.good)

    def _answers(self, problem: Problem) -> Iterator[Option]:
        kind = problem.kind
        if kind == ProblemKind.MISSING_MONITORING:
            yield Option(_order(problem.members[0]), True, problem.id)
        elif kind == ProblemKind.UNKNOWN_DRUG:
            made = Candidate("", DecisionMode.REGIMEN_OPT, ActionType.DECOMPOSE_NEW_DRUG, problem.members[0])
            yield Option(made, True, problem.id)
            yield Option(_stop(problem.members[0]), False, problem.id)
        elif kind == ProblemKind.MISSING_DATA:
            field = problem.members[0]
            yield Option(_order(field) if field == "creatinine" else _fetch(DISPENSING_RECORD), True, problem.id)
        elif kind in (ProblemKind.RENAL_DOSE, ProblemKind.OVERDOSE):
            yield from self._dosing(problem)
        elif kind != ProblemKind.UNTREATED_INDICATION:
            for name in problem.members:
                yield from self._removal(name, problem)

    def _removal(self, name: str, problem: Problem) -> Iterator[Option]:
        med = self.patient.med(name)
        if med is None:
            return
        tapered, step = must_taper(med, self.knowledge), self.knowledge.taper(name)
        if step is not None and tapered and med.taper is None:
            done = problem.kind in (ProblemKind.TAPER_NEEDED, ProblemKind.PIM, ProblemKind.DRUG_DISEASE)
            done = done or (problem.kind == ProblemKind.DDI and problem.severity != "contraindicated")
            yield Option(_taper(name, step.max_step_pct, step.interval_days), done, problem.id)
            yield Option(_taper(name, min(100.0, 2 * step.hard_cap_step_pct), 7), False, problem.id)
        yield Option(_stop(name), not tapered and self._spare(med), problem.id)
        yield from self._replacements(med, problem)
        if problem.kind == ProblemKind.DDI and med.bucket == DoseBucket.HIGH:
            yield from self._lower(med, problem, good=False)

    def _replacements(self, med: Med, problem: Problem) -> Iterator[Option]:
        swaps = [made for made in _swaps(med.drug, med.indication) if made.replacement_drug not in self.drugs]
        key = (med.drug, med.indication, self._regimen)
        known = self.patient.fits.get(key)
        if known is None:
            known = tuple(self._fits(made) for made in swaps)
            if len(self.patient.fits) >= MOST_KNOWN:
                self.patient.fits.clear()
            self.patient.fits[key] = known
        for made, good in zip(swaps, known, strict=True):
            yield Option(made, good, problem.id)

    def _fits(self, made: Candidate) -> bool:
        new, old = made.replacement_drug or "", made.target_drug or ""
        return judge(made, self.patient, self.seen, self.knowledge).legal and self._clean(new, old)

    def _dosing(self, problem: Problem) -> Iterator[Option]:
        name = problem.members[0]
        med = self.patient.med(name)
        if med is None:
            return
        cap = self.cap(name)
        if cap == 0:
            yield from self._removal(name, problem)
            return
        yield from self._lower(med, problem, good=True)
        yield Option(_stop(name), False, problem.id)
        yield Option(
            Candidate("", DecisionMode.DOSE_OPT, ActionType.HOLD_DOSE, name, None, DoseBucket.HOLD, 0.0),
            False,
            problem.id,
        )

    def cap(self, name: str) -> float | None:
        """The highest acceptable daily dose by the chart."""
        return self.patient.limit(name, self.knowledge, seen=True).daily_mg

    def _lower(self, med: Med, problem: Problem, *, good: bool) -> Iterator[Option]:
        """Every other dose bucket; good are those within the cap, down from here."""
        cap = self.cap(med.drug)
        offered = [(bucket, self.knowledge.bucket_mg(med.drug, bucket)) for bucket in _BUCKETS]
        if cap and offered[0][1] and offered[0][1] > cap:
            offered[0] = (DoseBucket.LOW, cap)
        for bucket, mg in offered:
            if mg is None or (med.daily_mg and abs(mg - med.daily_mg) < 1e-6):
                continue
            fits = (cap is None or mg <= cap) and mg < (med.daily_mg or 0)
            yield Option(_dose(med.drug, bucket, mg), good and fits, problem.id)

    def _spare(self, med: Med) -> bool:
        """Whether the drug can go without leaving a vital indication bare."""
        return not self._bare(med.drug)

    def _bare(self, old: str) -> set[str]:
        """Vital indications that nothing but `old` covers."""
        found = set(self._covering.get(old, ()))
        for drug, covered in self._covering.items():
            if drug != old:
                found -= covered
        return found

    def _clean(self, new: str, old: str) -> bool:
        """Whether `new` in the place of `old` makes no serious problem and covers what `old` did."""
        partners = self.knowledge.partners.get(new, {})
        rest = [name for name in self.drugs if name != old]
        if any(name in partners and partners[name].severity in SERIOUS for name in rest):
            return False
        cap, mg = self.cap(new), self.knowledge.bucket_mg(new, DoseBucket.LOW)
        if cap is not None and (cap == 0 or (mg is not None and mg > cap)):
            return False
        if not self._bare(old) <= set(self.knowledge.indications(new)):
            return False
        if any(new in members for _, members in self.knowledge.duplicates([*rest, new])):
            return False
        found = self.knowledge.beers([*rest, new], self.patient.conditions, self.patient.age, {new: 0})
        return not any(new in h.members and h.severity in SERIOUS and h.kind != "combination" for h in found)


def build(
    desk: Desk,
    rng: Generator,
    difficulty: str,
    *,
    tags: Mapping[str, str],
    lookups: Mapping[str, str],
    values: Sequence[tuple[float, tuple[str, ...]]],
) -> tuple[list[Candidate], set[str]]:
    """(shuffled candidates, ids of the good ones). `tags`: problem id -> warning or missing id; `lookups`: drug -> its
    missing id, for interactions that nobody has looked up; `values`: hazards of the chart."""
    options = _chosen(desk, rng, lookups, MOST[difficulty])
    order = rng.permutation(len(options)).tolist()
    noise: list[list[float]] = rng.normal(0.0, NOISE[difficulty], (len(options), 3)).tolist()
    now = _risk(values, None)
    made, good = [], set()
    for place, at in enumerate(order, 1):
        option = options[at]
        base, name = option.candidate, f"cand_{place:02d}"
        share = _REMOVED_SHARE.get(base.action_type, 0.0)
        gain = share * (now - _risk(values, base.target_drug)) if share and base.target_drug else 0.0
        tag = tags.get(option.problem) or lookups.get(base.target_drug or "", "") if option.problem else ""
        made.append(
            msgspec.structs.replace(
                base,
                candidate_id=name,
                estimated_safety_delta=round(gain + noise[at][0], 2),
                burden_delta=-0.03 if share == 1 and base.replacement_drug is None else 0.0,
                disease_stability_estimate=round(min(1.0, max(0.0, 0.8 + noise[at][1])), 2),
                uncertainty_score=round(min(1.0, abs(noise[at][2]) * 3), 2),
                rationale_tags=(tag,) if tag else (),
                legality_precheck=None if difficulty == "hard" else _precheck(desk, base),
            )
        )
        if option.good:
            good.add(name)
    return made, good


def _precheck(desk: Desk, candidate: Candidate) -> bool | None:
    """A rough look only: whether the target is there. The verifier looks at everything."""
    return candidate.target_drug is None or desk.patient.med(candidate.target_drug) is not None


def _chosen(desk: Desk, rng: Generator, lookups: Mapping[str, str], most: int) -> list[Option]:
    found = [Option(Candidate("", DecisionMode.REGIMEN_OPT, ActionType.KEEP_REGIMEN), False, "")]
    kinds = (ActionType.REQUEST_SPECIALIST_REVIEW, ActionType.REQUEST_PHARMACIST_REVIEW)
    found.append(Option(Candidate("", DecisionMode.REVIEW, kinds[int(rng.integers(2))]), False, ""))
    keys = {_key(option.candidate) for option in found}

    def add(option: Option) -> None:
        if _key(option.candidate) not in keys and len(found) < most:
            keys.add(_key(option.candidate))
            found.append(option)

    for drug, tag in lookups.items():
        add(Option(_order(drug) if drug == "creatinine" else _fetch(f"drug_{drug}", drug), True, tag))
    worst = [p for p in desk.seen if p.severity in SERIOUS] or list(desk.seen)
    answers = [list(desk.answers(problem)) for problem in worst[:3]]
    for good, n in ((True, 2), (False, 3)):  # the good ones of all problems first: room may run out
        for options in answers:
            for option in _some([o for o in options if o.good == good], rng, n):
                add(option)
    for problem in [p for p in desk.seen if p.kind == ProblemKind.MISSING_MONITORING][:1]:
        for option in desk.answers(problem):
            add(option)
    for option in _strays(desk, rng):
        if len(found) >= LEAST + 2:
            break
        add(option)
    return found


def _strays(desk: Desk, rng: Generator) -> Iterator[Option]:
    """Choices that answer nothing."""
    names = [med.drug for med in desk.patient.meds if not med.components]
    for med in desk.patient.meds:
        if med.taper and desk.patient.day - med.taper.last_day >= med.taper.interval_days:
            more = _taper(med.drug, med.taper.step_pct, med.taper.interval_days)
            yield Option(msgspec.structs.replace(more, action_type=ActionType.CONTINUE_TAPER), False, "")
    for at in rng.permutation(len(names)):
        yield Option(_stop(names[at]), False, "")
        yield Option(_fetch(f"drug_{names[at]}", names[at]), False, "")
    for lab in sorted(relevant_labs(desk.patient, desk.knowledge)):
        yield Option(_order(lab), False, "")


def _some(options: list[Option], rng: Generator, n: int) -> list[Option]:
    if len(options) < 2:  # nothing to draw, as the generator sees it too
        return options
    return [options[at] for at in sorted(rng.permutation(len(options)).tolist()[:n])]


def _key(candidate: Candidate) -> tuple[object, ...]:
    return (
        candidate.action_type, candidate.target_drug, candidate.replacement_drug, candidate.dose_bucket,
        candidate.taper_step_pct, candidate.monitoring, candidate.evidence_id,
    )  # fmt: skip


def _risk(values: Sequence[tuple[float, tuple[str, ...]]], without: str | None) -> float:
    safe = 1.0
    for value, members in values:
        if without not in members:
            safe *= 1 - HAZARD * value
    return 1 - safe


def _stop(drug: str) -> Candidate:
    return Candidate("", DecisionMode.REGIMEN_OPT, ActionType.STOP_DRUG, drug)


def _dose(drug: str, bucket: DoseBucket, mg: float) -> Candidate:
    return Candidate("", DecisionMode.DOSE_OPT, ActionType.ADJUST_DOSE_BUCKET, drug, None, bucket, mg)


def _taper(drug: str, pct: float, days: int) -> Candidate:
    kind = ActionType.INITIATE_TAPER
    return Candidate("", DecisionMode.DOSE_OPT, kind, drug, taper_step_pct=pct, taper_days=days)


def _order(lab: str) -> Candidate:
    return Candidate("", DecisionMode.REGIMEN_OPT, ActionType.ORDER_MONITORING, monitoring=lab)


def _fetch(document: str, drug: str | None = None) -> Candidate:
    kind = ActionType.FETCH_EXTERNAL_EVIDENCE
    return Candidate("", DecisionMode.REGIMEN_OPT, kind, drug, evidence_id=document)
