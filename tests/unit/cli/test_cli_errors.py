"""The error boundary: every way to go wrong has a message, an exit status and, with --json, exactly one document."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bashgym.cli import output
from bashgym.cli.registry import ROOT, Command, Group
from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger

Cli = Callable[..., Any]
MEASURED: dict[str, Any] = {"request": {}, "model": {}, "dataset": {}, "environment": {}, "recipe_digest": "0" * 64}


def commands(group: Group, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command | Group]]:
    yield above, group
    for name, entry in group.commands.items():
        if isinstance(entry, Group):
            yield from commands(entry, (*above, name))
        else:
            yield (*above, name), entry


ALL = list(commands(ROOT))


@pytest.mark.parametrize(("path", "entry"), ALL, ids=[" ".join(path) or "bashgym" for path, _ in ALL])
def test_every_command_has_help_with_json_and_says_what_each_option_means(
    cli: Cli, path: tuple[str, ...], entry: object
) -> None:
    said = cli(*path, "--help")
    assert said.code == 0 and "--json" in said.out and said.err == ""
    options = said.out.partition("Options:")[2].partition("Commands:")[0].splitlines()
    bare = [line for line in options if line.strip().startswith("--") and len(line.split("  ")) < 3 and len(line) < 24]
    assert bare == []


@pytest.mark.parametrize(("path", "entry"), ALL, ids=[" ".join(path) or "bashgym" for path, _ in ALL])
def test_an_unknown_option_is_a_usage_error_everywhere(cli: Cli, path: tuple[str, ...], entry: object) -> None:
    said = cli(*path, "--jsn", "--json")
    assert said.code == 2 and said.doc["detail"]["code"] == "usage"
    assert "--json" in said.doc["detail"]["hint"] and "error usage" in said.err


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (["trainin"], "bashgym training"),
        (["training", "strt"], "bashgym training start"),
        (["ledger", "trends"], "bashgym ledger trend"),
    ],
)
def test_an_unknown_command_is_told_the_nearest(cli: Cli, args: list[str], near: str) -> None:
    said = cli(*args, "--json")
    assert said.code == 2 and near in said.doc["detail"]["hint"]


def test_a_group_without_a_command_shows_its_help(cli: Cli) -> None:
    said = cli("training", "runcard")
    assert said.code == 0 and "attach-evidence" in said.out


@pytest.mark.parametrize(
    "args",
    [
        ["training", "get"],
        ["training", "log", "a", "b"],
        ["training", "start", "--checkpoint-limit", "x"],
        ["eval", "run"],
        ["api", "GET"],
    ],
)
def test_a_malformed_call_is_a_usage_error(cli: Cli, args: list[str]) -> None:
    assert cli(*args).code == 2


def test_a_fault_of_ours_is_typed_and_its_traceback_goes_to_a_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from bashgym.methods import catalog

    monkeypatch.setattr(catalog, "manifest", lambda: 1 / 0)
    said = cli("manifest", "--json")
    assert said.code == 1 and said.doc["detail"]["code"] == "internal"
    [log] = (tmp_path / "home/logs").iterdir()
    assert str(log) in said.doc["detail"]["hint"]
    assert "ZeroDivisionError" in log.read_text() and "Traceback" in log.read_text()


def test_an_interrupt_is_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from bashgym.methods import catalog

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "manifest", interrupted)
    said = cli("manifest", "--json")
    assert said.code == 130 and said.doc["detail"]["code"] == "interrupted"


def test_a_full_disk_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from bashgym.methods import catalog

    def full() -> None:
        raise OSError(28, "No space left on device", "/x/y")

    monkeypatch.setattr(catalog, "manifest", full)
    assert cli("manifest", "--json").doc["detail"]["code"] == "disk_full"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    env = {**os.environ, "BASHGYM_DIR": str(tmp_path)}
    command = f"{sys.executable} -m bashgym training capabilities --json | head -c 5"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and done.stdout == '{\n  "'


def test_errors_of_the_ledger_have_its_own_exit_statuses(cli: Cli) -> None:
    missing = cli("ledger", "run", "--workspace-id", "w", "--project", "p", "--run", "r", "--json")
    assert (missing.code, missing.doc["detail"]["code"]) == (5, "ledger_not_found")
    assert cli("ledger", "runs", "--project", "p").code == 2
    Ledger(Settings.from_env()).register_run(strategy="sft", run_id="run_1", run_dir="x", tracking=None, **MEASURED)
    there = ["--workspace-id", "desktop-local", "--project", "unassigned"]
    assert cli("ledger", "runs", *there).code == 0
    assert cli("ledger", "runs", *there, "--limit", "0").code == 7
    assert cli("ledger", "compare", "--workspace-id", "w", "--project", "p", "--run", "a").code == 2


def test_the_ledger_reads_without_a_credential_and_says_so(cli: Cli) -> None:
    said = cli("ledger", "projects", "--workspace-id", "w", "--credential-ref", "x", "--json")
    assert said.code == 0 and said.doc["projects"] == [] and "not needed" in said.err


def test_control_characters_of_foreign_data_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]0;title\x07\x1b[2J\u202e\x9b31m"
    output.emit(output.Reply({"message": hostile, "rows": [hostile]}), as_json=False)
    output.table([{"name": hostile}], ["name"])
    output.note(hostile)
    out, err = capfd.readouterr()
    assert not [c for c in out + err if not c.isprintable() and c != "\n"]


def test_a_document_with_nan_and_lone_surrogates_is_still_json(capfd: pytest.CaptureFixture[str]) -> None:
    import json

    output.print_json({"loss": float("nan"), "text": "\ud800é", "rows": [float("inf")]})
    assert json.loads(capfd.readouterr().out) == {"loss": None, "text": "\ud800é", "rows": [None]}


HEAVY = {
    "torch",
    "transformers",
    "trl",
    "fastapi",
    "sqlalchemy",
    "alembic",
    "rich.table",
    "scipy",
    "httpx",
    "matplotlib",
}
FAST = ["--help", "training --help", "training plan --json", "manifest", "training list --json", "ledger health"]
CODE = """
import sys
from bashgym.cli.main import main
main(sys.argv[1].split())
print(sorted(set(sys.argv[2].split()) & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose database exists: making it is what SQLAlchemy and Alembic are for."""
    root = tmp_path_factory.mktemp("fast")
    env = {**os.environ, "BASHGYM_DIR": str(root / "home"), "BASHGYM_MODELS_DIR": str(root / "models")}
    Ledger(Settings.from_env(env)).health()
    return env


@pytest.mark.parametrize("args", FAST)
def test_the_fast_commands_import_nothing_heavy(migrated: dict[str, str], args: str) -> None:
    argv = [sys.executable, "-c", CODE, args, " ".join(HEAVY)]
    done = subprocess.run(argv, env=migrated, capture_output=True, text=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"
