"""Everything that the environment decides, read once. No other module reads BASHGYM_* variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_API_BASE = "http://localhost:8003/api"


@dataclass(frozen=True)
class Settings:
    """See `from_env` for the variable behind each field."""

    home: Path
    """BASHGYM_DIR: database, caches, tokens. Default `~/.bashgym`."""
    models_dir: Path
    """BASHGYM_MODELS_DIR: run directories. Default `data/models` under the current folder."""
    database_url: str
    """BASHGYM_DATABASE_URL: empty means SQLite at `home/bashgym.sqlite3`."""
    api_base: str
    """BASHGYM_API_BASE; empty means the default base, and in-process if nothing listens there."""
    training_python: str
    """BASHGYM_TRAINING_PYTHON: the interpreter that trains and scores. Default this one."""
    workspace_id: str
    """BASHGYM_WORKSPACE_ID: the default ledger scope."""
    agent: str
    """BASHGYM_AGENT_KIND: recorded as the origin of a run."""
    terminal_id: str
    """BASHGYM_TERMINAL_ID: recorded as the origin of a run."""
    base_model: str
    """BASE_MODEL: used when a request names no model."""
    llama_cpp: str
    """BASHGYM_LLAMA_CPP: a llama.cpp checkout, for GGUF export. Empty looks on PATH only."""
    queue_slots: int
    """BASHGYM_QUEUE_SLOTS: runs that the queue lets train at a time. Default 1, as the local lane is one device."""
    dppo_commands: tuple[tuple[str, str], ...] = ()
    """BASHGYM_DPPO_{VERL,SKYRL,TMAX_OPEN_INSTRUCT}_COMMAND_TEMPLATE: (backend, command) for `training smoke-bundle`."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
        """Settings of the given environment, by default this process'. Paths come out absolute."""
        env = os.environ if env is None else env
        here = Path.cwd() if cwd is None else cwd
        get = env.get
        return cls(
            home=(here / Path(get("BASHGYM_DIR") or "~/.bashgym").expanduser()).absolute(),
            models_dir=(here / Path(get("BASHGYM_MODELS_DIR") or "data/models").expanduser()).absolute(),
            database_url=get("BASHGYM_DATABASE_URL", ""),
            api_base=get("BASHGYM_API_BASE", ""),
            training_python=get("BASHGYM_TRAINING_PYTHON") or sys.executable,
            workspace_id=get("BASHGYM_WORKSPACE_ID", ""),
            agent=get("BASHGYM_AGENT_KIND", ""),
            terminal_id=get("BASHGYM_TERMINAL_ID", ""),
            base_model=get("BASE_MODEL", ""),
            llama_cpp=get("BASHGYM_LLAMA_CPP", ""),
            queue_slots=_count(get("BASHGYM_QUEUE_SLOTS", "")),
            dppo_commands=tuple(
                (name, template)
                for name in ("verl", "skyrl", "tmax_open_instruct")
                if (template := get(f"BASHGYM_DPPO_{name.upper()}_COMMAND_TEMPLATE", ""))
            ),
        )


def _count(text: str) -> int:
    """A whole number from 1 on; anything else is 1."""
    return max(1, int(text)) if text.isdecimal() else 1
