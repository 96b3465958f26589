"""`training plan`: a method's recipe for one kind of hardware and data. Reads the registry; decides nothing itself."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from bashgym.core.errors import fail
from bashgym.methods import registry
from bashgym.methods.catalog import PLANNED_COMMANDS
from bashgym.methods.common import ADJUST, DATA, HARDWARE, HARDWARE_ALIASES, STORAGE
from bashgym.methods.docs import DOCS_PATH, anchor
from bashgym.methods.spec import Method

_DATA_STEPS = {
    "gold_traces": "Turn the verified sessions into JSONL rows first; hold whole sessions or repositories out.",
    "small": "With few rows, prefer one epoch and a wider check: every row is seen often enough.",
    "custom_jsonl": "Map your columns with column_mapping if they are not named as the dataset contract says.",
    "terminal_envs": "Hold task families out, not tasks: tasks of one family share their solution.",
    "security": "Convert the security data set to the dataset contract's rows first and check its licence.",
}


def make_plan(strategy: str, hardware: str = "local_12gb", data: str = "gold_traces") -> dict[str, Any]:
    """The plan as a JSON object; every key of `starting_settings` is a field of the training request.

    Raises `unknown_strategy`, or `invalid_field` naming `hardware` or `data`.
    """
    method = registry.get(strategy)
    hardware = _choice("hardware", HARDWARE_ALIASES.get(hardware, hardware), HARDWARE)
    data = _choice("data", data, DATA)
    settings = starting_settings(method, hardware, data)
    recipe = method.recipe
    return {
        "title": f"BashGym training plan: {method.title}",
        "ok": True,
        "strategy": method.name,
        "hardware": hardware,
        "data": data,
        "when_to_use": recipe.when_to_use,
        "starting_settings": settings,
        "settings_help": _settings_help(method, settings),
        "watch": list(recipe.watch),
        "metric_guide": [
            {"metric": m.key, "role": str(m.role), "means": m.means, "watch_for": m.watch_for, "action": m.action}
            for m in method.metrics
        ],
        "recommended_next_steps": [_DATA_STEPS[data], *recipe.steps],
        "readiness_ladder": [asdict(stage) for stage in recipe.ladder],
        "adjustment_rules": [{"signal": signal, "action": action} for signal, action in recipe.rules],
        "docs": [{"topic": topic, "path": DOCS_PATH + "#" + anchor(topic)} for topic in recipe.docs],
        "next": _next(method),
    }


def starting_settings(method: Method, hardware: str, data: str) -> dict[str, Any]:
    """Request fields to begin with: storage block (direct strategies), then recipe, hardware, data."""
    recipe = method.recipe
    storage = STORAGE if method.direct else {}
    return {**storage, **recipe.settings, **recipe.by_hardware.get(hardware, {}), **recipe.by_data.get(data, {})}


def _settings_help(method: Method, settings: dict[str, Any]) -> list[dict[str, Any]]:
    fields = {**registry.FIELDS, **registry.fields_of(method)}
    adjust = {**ADJUST, **method.recipe.adjust_when}
    return [
        {
            "setting": name,
            "means": fields[name].help,
            "start_here": value,
            "adjust_when": adjust.get(name, "rarely; it defines the method as planned here"),
        }
        for name, value in settings.items()
    ]


def _next(method: Method) -> list[dict[str, str]]:
    return [{"reason": reason + _caveat(command), "command": command} for reason, command in method.recipe.next]


def _caveat(command: str) -> str:
    if command.startswith(tuple(f"bashgym {planned}" for planned in PLANNED_COMMANDS)):
        return " (not in this version)"
    return ""


def _choice(field: str, value: str, known: dict[str, str]) -> str:
    if value in known:
        return value
    message = f"{field} is {json.dumps(value[:80])}; allowed: one of {', '.join(known)}"
    raise fail("invalid_field", message, "; ".join(f"{name}: {means}" for name, means in known.items()), [field])
