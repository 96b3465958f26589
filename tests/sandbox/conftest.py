"""Real sandboxes. Each test attacks one guarantee."""

from pathlib import Path

import pytest

from bashgym.envs import sandbox
from bashgym.envs.workspace import temporary_workspace


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture
def work():
    with temporary_workspace({}) as workspace:
        yield workspace.work


@pytest.fixture
def bash(work):
    def run(command, limits=None, **kwargs):
        return sandbox.run_command(command, workdir=work, limits=limits or sandbox.Limits(), **kwargs)

    return run
