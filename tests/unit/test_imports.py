"""Heavy libraries stay in the processes that train or score."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "ray")


@pytest.mark.parametrize(
    "module",
    [
        "bashgym.cli.main",
        "bashgym.api.app",
        "bashgym.runs.supervisor",
        "bashgym.runs.prepare",
        "bashgym.evals.service",
        "bashgym.evidence.runcard",
        "bashgym.demo.pipeline",
    ],
)
def test_no_heavy_import(module):
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_the_supervisor_and_the_cli_do_not_load_a_database_toolkit_or_a_web_framework():
    for module in ("bashgym.cli.main", "bashgym.runs.supervisor"):
        slow = ("sqlalchemy", "fastapi", "pydantic", "scipy", "rich")
        code = f"import sys, {module}; print([m for m in {slow!r} if m in sys.modules])"
        assert (
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
            == "[]"
        )


def test_importing_bashgym_imports_nothing_of_it():
    code = "import sys, bashgym; print([m for m in sys.modules if m.startswith('bashgym.')])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
