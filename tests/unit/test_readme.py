"""Every command that the README shows exists, with the options that it shows."""

import re
import shlex
from pathlib import Path

import pytest

from bashgym.cli.main import main

ROOT = Path(__file__).parents[2]


def _commands():
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    for block in re.findall(r"```bash\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if line.startswith("bashgym "):
                yield shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("argv", list(_commands()), ids=" ".join)
def test_the_command_and_its_options_exist(argv, capsys):
    words = [word for word in argv if not word.startswith("-")]
    depth = 3 if words[1] in ("runcard", "tracking-context", "session-records") else 2
    assert main([*words[:depth], "--help"]) == 0
    shown = capsys.readouterr().out
    for option in (word for word in argv if word.startswith("--")):
        assert option in shown, option


def test_no_placeholder_is_left():
    assert "@@" not in (ROOT / "README.md").read_text()


def test_example_files_are_what_a_run_takes():
    from bashgym.data.contracts import check_dataset

    report = check_dataset(ROOT / "examples/shell_sft.jsonl", "sft")
    assert report.is_valid and report.total_examples == 400
