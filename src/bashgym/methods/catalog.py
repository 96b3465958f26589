"""What this installation can do: `capabilities`, `manifest`, and the documentation made from the registry.

Static: nothing here looks at the machine, the database or the network.
"""

from __future__ import annotations

from typing import Any

import bashgym
from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from bashgym.methods import registry
from bashgym.methods.common import DATA, GROUPS, HARDWARE, RETENTION
from bashgym.methods.docs import DOCS_PATH, TOPICS, all_metrics, anchor, built, metric_table, table
from bashgym.methods.spec import Field, Method

COMMANDS: dict[str, str] = {
    "training start": "check a request and start the run",
    "training plan": "starting settings, metrics and gates of a method",
    "training queue list": "runs that wait for a free training slot",
    "training samples": "search what a run generated",
    "training diff": "what differs between two runs",
    "training reproduce": "run a run again and compare the weights",
    "training analyze": "what the curves and the evidence say",
    "training classify": "what kind of run it was and what evidence it has",
    "training capabilities": "this list",
    "training docs": "short texts by topic",
    "training runcard create": "bind evidence to a claim",
    "training runcard validate": "re-hash and judge a card",
    "training runcard attach-evidence": "add evidence to a card",
    "training tracking-context init": "measured digests for a tracked run",
    "training session-records build": "session-distillation records from recorded sessions",
    "training session-records validate": "is every record one that can be trained on",
    "training dpo-pairs validate": "is every preference pair one that can be trained on and accounted for",
    "training reward-examples validate": "is every reward example one that can be trained on and accounted for",
    "training reward-eval evaluate": "held-out pairs, calibration, bias and leakage of predictions",
    "training reward-model smoke": "proves the path with a bag-of-words scorer",
    "training reward-model score": "what a trained reward model says of rows",
    "data check": "everything that loses a run, before it starts",
    "data preview": "which tokens of a row are trained",
    "eval run": "paired evaluation on executed held-out tasks",
    "eval retrieval": "a retriever against the incumbent on a frozen split",
    "eval replay-score": "log probabilities of a DPPO replay under a model",
    "cascade start": "one training stage per domain, each with its own card",
    "cascade status": "where a cascade stands, stage by stage",
    "cascade distill": "one student from the stages of a cascade",
    "training smoke-bundle": "is a DPPO replay ready, and who could train on it here",
    "replay summarize": "what a replay holds",
    "replay scrub": "a replay without secrets",
    "demo": "the whole loop on a laptop",
    "serve": "HTTP API",
    "api": "one API request, in-process where nothing listens",
    "manifest": "what an agent has to know first",
    "operator doctor": "whether this machine is ready",
}
"""Command -> what it does."""

PLANNED_COMMANDS: tuple[str, ...] = ()
"""Commands that plans name and this version does not have."""

API_ROUTES = (
    "GET /api/health",
    "GET /api/system/info",
    "GET /api/system/recommendations",
    "POST /api/training/start",
    "GET /api/training",
    "GET /api/training/{run_id}",
    "GET /api/training/{run_id}/log",
    "POST /api/training/{run_id}/pause|resume|stop",
    "GET /api/training/{run_id}/samples",
    "GET /api/training/queue",
    "POST /api/training/queue/{run_id}/move",
    "GET /api/training/diff",
    "GET /api/training/runs",
    "GET /api/training/runs/{run_id}/metrics",
    "GET /api/training/runs/{run_id}/analysis",
    "GET /api/training/runcards",
    "GET /api/training/runcards/validate",
    "POST /api/eval/environments/dppo-replay/enrich",
    "POST /api/eval/environments/dppo-replay/smoke-plan",
)

TARGETS: dict[str, bool] = {
    "local": True,
    "ssh:<device>": False,
    "cloud:nemo-customizer": False,
    "ray:<address>": False,
}
"""Compute target -> whether this version runs there."""


def describe(field: Field) -> dict[str, Any]:
    """One field for agents and forms."""
    return {
        "name": field.name,
        "type": str(field.kind),
        "nullable": field.nullable,
        "default": field.default,
        "minimum": field.minimum,
        "maximum": field.maximum,
        "choices": list(field.choices),
        "allowed": field.allowed(),
        "help": field.help,
    }


def capabilities() -> dict[str, Any]:
    """Methods, fields, commands, targets, retention policies and metrics (`bashgym.capabilities.v1`)."""
    methods = registry.METHODS.values()
    return {
        "schema_version": "bashgym.capabilities.v1",
        "direct_strategies": registry.direct_names(),
        "built_strategies": [m.name for m in methods if m.builder],
        "planning_only": [m.name for m in methods if not m.direct],
        "common_fields": [describe(f) for f in registry.fields_of(_blank()).values()],
        "strategies": {m.name: _strategy(m) for m in methods},
        "hardware": HARDWARE,
        "data": DATA,
        "commands": COMMANDS,
        "commands_not_built": list(PLANNED_COMMANDS),
        "compute_targets": {
            "built": [name for name, here in TARGETS.items() if here],
            "not_built": [name for name, here in TARGETS.items() if not here],
        },
        "artifact_retention": RETENTION,
        "metrics": [
            {"metric": m.key, "canonical": m.name, "role": str(m.role), "means": m.means, "aliases": list(m.aliases)}
            for m in all_metrics()
        ],
        "docs": list(TOPICS),
    }


def _blank() -> Method:
    """A direct method without fields of its own: what is left are the common ones."""
    from dataclasses import replace

    return replace(registry.METHODS["sft"], own_fields=())


def _strategy(method: Method) -> dict[str, Any]:
    return {
        "title": method.title,
        "summary": method.summary,
        "aliases": list(method.aliases),
        "direct": method.direct,
        "built": method.builder is not None,
        "workflow": method.workflow,
        "objective": method.objective,
        "dataset": {
            "format": method.dataset.format,
            "row": method.dataset.row,
            "required": list(method.dataset.required),
            "optional": list(method.dataset.optional),
            "rules": list(method.dataset.rules),
        },
        "fields": list(registry.fields_of(method)),
        "own_fields": [describe(field) for field in method.own_fields],
        "metrics": [metric.key for metric in method.metrics],
        "must_emit": list(method.must_emit),
        "evidence": [
            {
                "kind": str(rule.kind),
                "means": rule.means,
                "required_for_promotion": rule.required_for_promotion,
                "terminal_only": rule.terminal_only,
                "card_fields": list(rule.card_fields),
            }
            for rule in method.evidence
        ],
    }


def manifest() -> dict[str, Any]:
    """What an agent reads first: small, and enough to find the rest (`bashgym.manifest.v1`)."""
    return {
        "schema_version": "bashgym.manifest.v1",
        "name": "bashgym",
        "version": bashgym.__version__,
        "summary": "Plan, launch, watch, evaluate and promote LLM post-training runs, with evidence that re-checks.",
        "commands": COMMANDS,
        "api_routes": list(API_ROUTES),
        "direct_strategies": {name: built(registry.get(name)) for name in registry.direct_names()},
        "capabilities": {"command": "bashgym training capabilities --json", "digest": digest_json(capabilities())},
        "docs": {"command": "bashgym training docs --topic <topic> --include-content --json", "topics": list(TOPICS)},
        "output": "--json prints one document on stdout; errors are {detail: {code, message, hint, fields}}; exit "
        "0 ok, 1 refused or failed, 2 usage or a validator that said no, 130 interrupted",
    }


def docs(topic: str | None = None, include_content: bool = False) -> dict[str, Any]:
    """The topics, or one of them; `content` is Markdown. `invalid_field` for a topic that does not exist."""
    if topic is not None and topic not in TOPICS:
        known = ", ".join(TOPICS)
        raise fail("invalid_field", f"there is no topic {topic[:80]!r}; allowed: one of {known}", "", ["topic"])
    chosen = [topic] if topic is not None else list(TOPICS)
    entries: list[dict[str, Any]] = []
    for name in chosen:
        summary, text = TOPICS[name]
        entry = {"topic": name, "summary": summary, "path": f"{DOCS_PATH}#{anchor(name)}"}
        entries.append({**entry, "content": text()} if include_content else entry)
    return {"schema_version": "bashgym.training_docs.v1", "title": "BashGym training docs", "topics": entries}


def methods_markdown() -> str:
    """docs/methods.md, all of it."""
    parts = [
        "# Training methods\n",
        "Generated from the method registry by `python -m bashgym.methods`; do not edit. A request is checked against "
        "these tables: an unknown field is refused by name, and so is a value outside its bounds.\n",
    ]
    for name, (summary, text) in TOPICS.items():
        parts += [f"## {name}\n", f"{summary}\n", text()]
    parts += ["## Common fields\n", "Every direct strategy has these.\n"]
    for group, fields in GROUPS.items():
        parts += [f"### {group}\n", _field_table(fields)]
    for method in registry.METHODS.values():
        parts += _method_section(method)
    return "\n".join(parts)


def _field_table(fields: tuple[Field, ...]) -> str:
    rows = [(f"`{f.name}`", f.allowed(), f"`{_json(f.default)}`", f.help) for f in fields]
    return table(("field", "value", "default", "meaning"), rows)


def _json(value: object) -> str:
    import json

    return json.dumps(value)


def _method_section(method: Method) -> list[str]:
    data = method.dataset
    facts = [
        f"- In this version: {built(method)}" + (f"; {method.workflow}" if method.workflow else ""),
        *([f"- Also called: {', '.join(f'`{a}`' for a in method.aliases)}"] if method.aliases else []),
        f"- Objective: {method.objective}",
        f"- A row is {data.row}"
        + (f"; required: {', '.join(f'`{c}`' for c in data.required)}" if data.required else ""),
        *[f"- {rule[0].upper()}{rule[1:]}" for rule in data.rules],
    ]
    parts = [
        f"## {method.name}\n" if method.name not in TOPICS else f"## Method {method.name}\n",
        f"**{method.title}.** {method.summary}\n",
        "\n".join(facts) + "\n",
    ]
    if data.example:
        parts.append(f"```json\n{_json(dict(data.example))}\n```\n")
    if method.own_fields:
        parts += [f"### Fields of {method.name}\n", _field_table(method.own_fields)]
    parts += [f"### Metrics of {method.name}\n", metric_table(method.metrics)]
    rows = [(f"`{r.kind}`", r.means, _needed(r.required_for_promotion, r.terminal_only)) for r in method.evidence]
    return [*parts, f"### Evidence for {method.name}\n", table(("kind", "means", "for promotion"), rows)]


def _needed(required: bool, terminal_only: bool) -> str:
    if not required:
        return "optional"
    return "required for terminal-facing models" if terminal_only else "required"
