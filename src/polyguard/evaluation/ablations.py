"""Every stack, and every part of the agent stack left out once, on the same scenarios: what helps, by how much, how surely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bashgym.core.errors import BashGymError
from polyguard import DISCLAIMER
from polyguard.evaluation.play import EpisodeRow, Scenario, play, seeds_digest
from polyguard.evaluation.report import SCHEMA_VERSION, paired, summary
from polyguard.evaluation.stacks import COMPONENTS, STACKS, Bench
from polyguard.knowledge import load
from polyguard.policies.compose import Watched

REFERENCE = "rules_only"
"""The stack that all others are compared with."""
_COMPARED = ("avg_reward", "avg_return", "success_rate", "legality_rate", "exploit_rate", "risk_delta")
Say = Callable[[str], None]
_ABSENT = frozenset({"model_missing", "model_incomplete", "missing_extra"})
"""What makes a stack skipped; every other error is one."""


def ablate(
    chosen: Sequence[Scenario],
    bench: Bench,
    *,
    stacks: Sequence[str] | None = None,
    parts_on: Sequence[Scenario] = (),
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """The report. A stack that needs a model that is not there is recorded as skipped, never replaced by another.

    `parts_on`: scenarios for the parts of stacks, which need no model and add little each, so that many are wise.
    """
    rows: dict[str, list[EpisodeRow]] = {}
    judged: dict[str, Any] = {}
    for name in stacks or STACKS:
        try:
            policy = STACKS[name](bench)
            rows[name] = play(policy, chosen, profile=bench.profile)
        except BashGymError as error:
            if error.code not in _ABSENT:
                raise
            judged[name] = {"status": "skipped", "reason": error.message}
        else:
            judged[name] = {"status": "ok", **summary(rows[name])}
            if isinstance(policy, Watched):
                judged[name]["vetoed_share"] = round(policy.vetoed / policy.asked, 6)
        say(line_of(name, judged[name]))
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "disclaimer": DISCLAIMER,
        "split": chosen[0].split,
        "episodes": len(chosen),
        "seeds_sha256": seeds_digest(chosen),
        "profile": bench.profile,
        "knowledge_version": load().version,
        "model": None if bench.model is None else str(bench.adapter or bench.model),
        "policy_stacks": judged,
        "reference": REFERENCE if REFERENCE in rows else None,
    }
    if REFERENCE in rows:
        others = [name for name in rows if name != REFERENCE]
        report["against_reference"] = {name: paired(rows[REFERENCE], rows[name], _COMPARED) for name in others}
    if parts_on:
        report["component_episodes"] = len(parts_on)
        report["components"] = _components(parts_on, bench, say)
    return report


def line_of(name: str, judged: dict[str, Any]) -> str:
    """One stack in a line."""
    if judged["status"] != "ok":
        return f"{name:16} skipped: {judged['reason']}"
    parts = []
    for label in ("avg_reward", "avg_return", "success_rate", "legality_rate", "exploit_rate"):
        found = judged["metrics"][label]
        parts.append(f"{label} {found['mean']:.3f} [{found['ci_low']:.3f}, {found['ci_high']:.3f}]")
    return f"{name:16} {'  '.join(parts)}"


def _components(chosen: Sequence[Scenario], bench: Bench, say: Say) -> dict[str, Any]:
    """What each part adds: the whole stack less the stack without it.

    It helps if the interval of the return is above zero, or that of legality while the return may have gained too.
    """
    wholes: dict[str, list[EpisodeRow]] = {}
    found = {}
    for part, (whole, make) in COMPONENTS.items():
        if whole not in wholes:
            wholes[whole] = play(STACKS[whole](bench), chosen, profile=bench.profile)
        gains = paired(play(make(bench), chosen, profile=bench.profile), wholes[whole], _COMPARED)
        gain = gains["avg_return"]
        say(f"{part}: adds {gain['delta']:+.3f} to the return [{gain['ci_low']:+.3f}, {gain['ci_high']:+.3f}]")
        helps = gain["ci_low"] > 0 or (gains["legality_rate"]["ci_low"] > 0 and gain["ci_high"] > 0)
        found[part] = {"stack": whole, "helps": helps, "gain": gains}
    return found
