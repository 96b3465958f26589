"""The command line, called in this process over a fresh workspace."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bashgym.cli.main import main


@dataclass
class Said:
    """What a command printed, and its exit status."""

    code: int
    out: str
    err: str

    @property
    def doc(self) -> Any:
        """stdout as the one JSON document that it has to be."""
        return json.loads(self.out)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name in ("API_BASE", "API_TOKEN", "MODELS_DIR", "DATABASE_URL", "WORKSPACE_ID", "TERMINAL_ID", "AGENT_KIND"):
        monkeypatch.delenv(f"BASHGYM_{name}", raising=False)
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path / "home"))

    def run(*args: str) -> Said:
        capfd.readouterr()
        code = main(list(args))
        out, err = capfd.readouterr()
        assert "Traceback (most recent call last)" not in out + err
        return Said(code, out, err)

    return run
