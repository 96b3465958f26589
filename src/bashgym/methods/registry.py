"""All methods, by name. To add a method is to add one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from bashgym.core.errors import fail
from bashgym.methods import (
    cascade,
    distillation,
    dpo,
    dppo,
    embedding_retriever,
    grpo,
    reward_model,
    rlvr,
    session_distillation,
    sft,
    world_model,
)
from bashgym.methods.common import COMMON, OTHER_SOURCES
from bashgym.methods.spec import Field, Method

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (
        sft,
        dpo,
        grpo,
        rlvr,
        distillation,
        session_distillation,
        dppo,
        reward_model,
        world_model,
        cascade,
        embedding_retriever,
    )
}

ALIASES: dict[str, str] = {alias: method.name for method in METHODS.values() for alias in method.aliases}
"""Other spelling -> method name."""

FIELDS: dict[str, Field] = {
    # Reversed, so that of two methods with the same field the earlier one (grpo before rlvr) describes it.
    **{field.name: field for method in reversed(METHODS.values()) for field in method.own_fields},
    **{field.name: field for field in (*COMMON, *OTHER_SOURCES)},
}
"""Every field that a training request may have."""


def get(name: str) -> Method:
    """The method called `name` or known by that alias. `unknown_strategy`, naming the nearest, if there is none."""
    method = METHODS.get(ALIASES.get(name, name))
    if method is not None:
        return method
    from difflib import get_close_matches

    near = get_close_matches(name.strip().lower().replace("-", "_"), [*METHODS, *ALIASES], n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    known = ", ".join(METHODS)
    raise fail(
        "unknown_strategy", f"no training method is called {name[:80]!r}", f"{hint}Known: {known}.", ["strategy"]
    )


def direct_names() -> list[str]:
    """The strategies that `training start` takes."""
    return [name for name, method in METHODS.items() if method.direct]


def fields_of(method: Method) -> dict[str, Field]:
    """The fields that `method` uses, the common ones first; its own description of a field wins."""
    common = {field.name: field for field in COMMON} if method.direct else {}
    return {**common, **{field.name: field for field in method.own_fields}}


def must_emit(method: Method, request: Mapping[str, object]) -> tuple[str, ...]:
    """The metrics without which a run of this request is incomplete."""
    return distillation.emitted(request) if method is distillation.METHOD else method.must_emit


def methods_with(field_name: str) -> list[str]:
    """The methods that use the field."""
    return [name for name, method in METHODS.items() if field_name in fields_of(method)]


def metric_aliases() -> dict[str, str]:
    """Every spelling of every metric -> its canonical name: the name itself, the name in metrics.jsonl, the listed
    aliases, and the camelCase form of each."""
    spellings: dict[str, str] = {}
    for method in METHODS.values():
        for metric in method.metrics:
            for spelling in (metric.name, metric.key, *metric.aliases):
                head, *rest = spelling.split("_")
                for form in (spelling, head + "".join(part.capitalize() for part in rest)):
                    spellings.setdefault(form, metric.name)
    return spellings
