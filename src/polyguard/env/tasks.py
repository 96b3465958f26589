"""The ten task families, their splits, and the scenarios in them.

A scenario is made from templates (an interacting pair, a duplicate, a drug that is no good for this patient, ...). Every
template belongs to one split by its hash. That keeps templates apart, not every pair: hidden drugs and parts of combination
products, which no template names, may make a pair in several splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from itertools import combinations

import msgspec

from bashgym.core.errors import fail
from polyguard.env.problems import SERIOUS
from polyguard.env.types import Difficulty, SubEnvironment
from polyguard.knowledge.tables import Knowledge, load

SPLITS = ("train", "validation", "test")
COUNT = {"train": 2000, "validation": 200, "test": 200}
"""Scenarios of a task in each split."""
_SHARES = ("train",) * 6 + ("validation",) * 2 + ("test",) * 2
AGE = 76
"""At which templates are looked for."""


class Task(msgspec.Struct, frozen=True):
    """A family of scenarios."""

    id: str
    difficulty: Difficulty
    sub_environment: SubEnvironment
    drugs: tuple[int, int]
    kinds: tuple[tuple[str, ...], ...]
    """One problem is drawn from each of these lists of template kinds."""
    extra: int = 0
    """Up to so many more problems of the last list."""
    hidden: tuple[str, ...] = ()
    """What is hidden, on top of interactions that nobody has looked up: creatinine, stale_creatinine, otc, product."""
    steps: int = 5
    cases: int = 1
    """Patients in a row."""
    conflict: bool = False
    """Two prescribers disagree."""


_E, _M, _H, _S = Difficulty.EASY, Difficulty.MEDIUM, Difficulty.HARD, SubEnvironment
TASKS: dict[str, Task] = {
    task.id: task
    for task in (
        Task("easy/ddi_screening", _E, _S.DDI, (3, 5), (("ddi",),)),
        Task("easy/regimen_risk", _E, _S.REGIMEN_RISK, (4, 6), (("duplicate", "pim"),)),
        Task("easy/precision_dosing", _E, _S.PRECISION_DOSING, (3, 5), (("renal",),)),
        Task("medium/deprescribing", _M, _S.DEPRESCRIBING, (6, 9), (("taper",), ("pim", "taper")), 1, steps=8),
        Task("medium/alternatives", _M, _S.ALTERNATIVE_SUGGESTION, (6, 9), (("ddi",), ("ddi",)), steps=8),
        Task(
            "medium/precision_dosing", _M, _S.PRECISION_DOSING, (6, 9), (("renal",), ("renal",), ("ddi",)),
            hidden=("stale_creatinine",), steps=8,
        ),
        Task("medium/bandit_mining", _M, _S.BANDIT_MINING, (5, 7), (("ddi", "pim", "duplicate"),), steps=6, cases=3),
        Task(
            "hard/missing_data", _H, _S.WEB_SEARCH_MISSING_DATA, (9, 13), (("renal",), ("ddi",), ("pim", "taper")), 1,
            hidden=("creatinine", "otc"), steps=12,
        ),
        Task(
            "hard/new_drug", _H, _S.NEW_DRUG_DECOMPOSITION, (8, 12), (("ddi",), ("pim",), ("duplicate",)),
            hidden=("product",), steps=6 + 6,
        ),
        Task(
            "hard/complex_tradeoff", _H, _S.ALTERNATIVE_SUGGESTION, (10, 15),
            (("ddi",), ("renal",), ("taper",), ("ddi", "pim")), 2, hidden=("otc",), steps=12, conflict=True,
        ),
    )
}  # fmt: skip


class Template(msgspec.Struct, frozen=True):
    """A problem that scenarios are made around."""

    id: str
    kind: str
    """ddi, duplicate, pim, taper, renal."""
    drugs: tuple[str, ...]
    condition: str = ""
    split: str = ""


def template_split(template: str) -> str:
    """The only split that has a pair of drugs."""
    return _SHARES[_hash(template) % len(_SHARES)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@cache
def templates() -> dict[tuple[str, str], tuple[Template, ...]]:
    """(kind, split) -> its templates, in a fixed order."""
    found: dict[tuple[str, str], list[Template]] = {}
    single: dict[str, list[Template]] = {}
    for kind, drugs, condition in sorted(set(_templates(load()))):
        made = Template(f"{kind}:{'+'.join(drugs)}{'@' + condition if condition else ''}", kind, drugs, condition)
        if len(drugs) == 1:
            single.setdefault(kind, []).append(made)
            continue
        # Pairs have one split whatever makes them a problem, so that no pair is in two.
        split = template_split("+".join(drugs))
        found.setdefault((kind, split), []).append(msgspec.structs.replace(made, split=split))
    for kind, rows in single.items():
        # There are few: shared out by rank, so that each split has some.
        for rank, made in enumerate(sorted(rows, key=lambda item: _hash(item.id))):
            split = _SHARES[rank * 3 % len(_SHARES)]
            found.setdefault((kind, split), []).append(msgspec.structs.replace(made, split=split))
    return {key: tuple(sorted(rows, key=lambda item: item.id)) for key, rows in found.items()}


def _templates(knowledge: Knowledge) -> Iterable[tuple[str, tuple[str, ...], str]]:
    for pair, hit in knowledge.pairs.items():
        if hit.severity in SERIOUS and all(knowledge.indications(name) for name in pair):
            yield "ddi", tuple(sorted(pair)), ""
    for members in knowledge.groups.values():
        for a, b in combinations(sorted(members), 2):
            if knowledge.duplicates((a, b)) and knowledge.indications(a) and knowledge.indications(b):
                yield "duplicate", (a, b), ""
    for name in knowledge.drugs:
        if not knowledge.indications(name):
            continue
        own = [hit for hit in knowledge.beers((name,), (), AGE) if hit.severity in SERIOUS and hit.kind == "pim"]
        rule = knowledge.taper(name)
        if own:
            yield ("taper" if rule and not rule.optional else "pim"), (name,), ""
        for condition in ("dementia", "falls_fractures", "heart_failure", "delirium", "syncope"):
            hits = knowledge.beers((name,), (condition,), AGE)
            if not own and any(hit.severity in SERIOUS and hit.condition == condition for hit in hits):
                yield ("taper" if rule and not rule.optional else "pim"), (name,), condition
        if knowledge.has_renal_rule(name) and any(knowledge.renal(name, 22, 24)):
            yield "renal", (name,), ""


def task(task_id: str) -> Task:
    """The task; `invalid_field` with the nearest name."""
    if task_id not in TASKS:
        hint = f"Known: {', '.join(TASKS)}."
        raise fail("invalid_field", f"there is no task {task_id[:80]!r}", hint, ["task_id"])
    return TASKS[task_id]


def fitting(difficulty: str | None, sub_environment: str | None) -> str:
    """The first task of that difficulty and kind; `invalid_field`."""
    for item in TASKS.values():
        if difficulty in (None, item.difficulty) and sub_environment in (None, item.sub_environment):
            return item.id
    text = f"no task is {difficulty} and {sub_environment}"
    raise fail("invalid_field", text, fields=["difficulty", "sub_environment"])


def scenario_id(task_id: str, split: str, index: int) -> str:
    """`<task>:<split>:<index>`."""
    return f"{task_id}:{split}:{index:05d}"


def scenario_seed(task_id: str, split: str, index: int) -> int:
    """The seed of a scenario, the same everywhere."""
    digest = hashlib.blake2b(scenario_id(task_id, split, index).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
