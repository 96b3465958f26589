"""The terminal suite: single-command tasks made by seed, each with a verifier of its effect."""

from bashgym.envs.terminal import archives, counting, files, permissions, scripts, search, text
from bashgym.envs.terminal.base import FAMILIES, Category, Family, Split, is_heldout
from bashgym.envs.terminal.suite import (
    INSTRUCT_PROMPT,
    SYSTEM_PROMPT,
    VERSION,
    TerminalTask,
    build,
    environment_rows,
    extract_command,
    judge,
    judge_completion,
    judge_many,
    suite_digest,
    training_rows,
)

FAMILY_MODULES = (files, text, search, counting, archives, permissions, scripts)
"""Importing them fills `FAMILIES`."""

__all__ = [
    "FAMILIES",
    "FAMILY_MODULES",
    "INSTRUCT_PROMPT",
    "SYSTEM_PROMPT",
    "VERSION",
    "Category",
    "Family",
    "Split",
    "TerminalTask",
    "build",
    "environment_rows",
    "extract_command",
    "is_heldout",
    "judge",
    "judge_completion",
    "judge_many",
    "suite_digest",
    "training_rows",
]
