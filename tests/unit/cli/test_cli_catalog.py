"""What the manifest promises exists: every command in the registry of commands, every route in the app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bashgym.cli.registry import ROOT, Command, Group
from bashgym.methods.catalog import API_ROUTES, COMMANDS, TARGETS
from bashgym.methods.request import CONTROLLED


def test_every_promised_command_exists() -> None:
    for promised in COMMANDS:
        at: Group | Command = ROOT
        for word in promised.split():
            assert isinstance(at, Group) and word in at.commands, promised
            at = at.commands[word]
        assert isinstance(at, Command), promised


def test_every_promised_route_exists() -> None:
    from bashgym.api.app import build_app
    from bashgym.core.settings import Settings
    from bashgym.workspace import Workspace

    paths = build_app(Workspace(Settings.from_env())).openapi()["paths"]
    known = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    for promised in API_ROUTES:
        method, path = promised.split()
        stem, _, last = path.rpartition("/")
        assert all((method, f"{stem}/{end}") in known for end in last.split("|")), promised


def test_every_controlled_field_has_its_flag(cli: Callable[..., Any]) -> None:
    shown = cli("training", "start", "--help").out
    assert all(flag in shown for flag in CONTROLLED.values() if flag.startswith("--"))


def test_every_method_is_listed(cli: Callable[..., Any]) -> None:
    from bashgym.methods.registry import METHODS

    assert [row["method"] for row in cli("training", "methods", "--json").doc["methods"]] == list(METHODS)
    assert {row["target"] for row in cli("compute", "targets", "--json").doc["targets"]} == set(TARGETS)


def test_every_topic_of_the_docs_has_text(cli: Callable[..., Any]) -> None:
    topics = cli("training", "docs", "--include-content", "--json").doc["topics"]
    assert topics and all(entry["content"].strip() for entry in topics)
    assert cli("training", "docs", "--topic", "nope").code == 1


def test_a_plain_doctor_and_its_document_agree(cli: Callable[..., Any]) -> None:
    said = cli("operator", "doctor", "--json")
    text = cli("operator", "doctor")
    assert said.code == text.code == (0 if said.doc["ok"] else 1)
    assert all(check["name"] in text.out for check in said.doc["checks"])


def test_a_target_other_than_this_machine_is_refused_by_name(cli: Callable[..., Any]) -> None:
    for target, code in (
        ("ssh:box", "target_unavailable"),
        ("hf-jobs", "target_other_surface"),
        ("cloud", "target_ambiguous"),
    ):
        assert cli("compute", "preflight", "--target", target, "--json").doc["detail"]["code"] == code


def test_models_are_listed_and_resolved_to_their_digests(cli: Callable[..., Any]) -> None:
    assert cli("models", "list", "--json").doc["models"][0]["name"] == "bashgym/tiny-qwen2"
    assert len(cli("models", "resolve", "bashgym/tiny-qwen2", "--json").doc["digest"]) == 64
    assert cli("models", "resolve", "no-such", "--json").doc["detail"]["code"] == "model_missing"
