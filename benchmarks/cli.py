"""Start time of whole commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from benchmarks.measure import Result, command_ms
from benchmarks.metrics import register

BIN = Path(sys.executable).parent


def run(work: Path) -> list[Result]:
    """--help, read commands, plan with and without a dataset of 10,000 rows; beside trl's own CLI."""
    home = {"BASHGYM_DIR": str(work / "home")}
    ours = str(BIN / "bashgym")
    data = work / "rows.jsonl"
    data.write_text("".join(_row(i) for i in range(10_000)))
    register(Ledger(Settings.from_env(home, work)), work)
    trl_help = command_ms([str(BIN / "trl"), "--help"], repeats=3, env=home)
    trl_sft = command_ms([str(BIN / "trl"), "sft", "--help"], repeats=2, env=home)

    def ms(*argv: str) -> float:
        return command_ms([ours, *argv], env=home, cwd=str(work))

    plan = ["training", "plan", "--strategy", "sft", "--json"]
    return [
        Result("`bashgym --help`", ms("--help"), "ms", "≤ 100", "`trl --help`", trl_help),
        Result(
            "`bashgym ledger runs --json`",
            ms("ledger", "runs", "--workspace-id", "desktop-local", "--project", "unassigned", "--json"),
            "ms",
            "≤ 150",
        ),
        Result("`bashgym training plan --json`", ms(*plan), "ms", "≤ 150", "`trl sft --help`", trl_sft),
        Result(
            "`training plan` with the preflight of 10,000 rows",
            ms(*plan, "--model", "bashgym/tiny-qwen2", "--dataset-path", str(data)),
            "ms",
            "≤ 600",
            "`trl sft --help`",
            trl_sft,
        ),
    ]


def _row(i: int) -> str:
    user, answer = f"What is {i} plus {i * 7}?", str(i * 8)
    return (
        json.dumps({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]}) + "\n"
    )
