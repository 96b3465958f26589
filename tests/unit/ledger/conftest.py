"""A migrated SQLite database for each test, copied from one that is migrated once."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template")
    ledger = Ledger(Settings.from_env({"BASHGYM_DIR": str(home)}))
    ledger.health()
    ledger.close()
    return home / "bashgym.sqlite3"


@pytest.fixture
def settings(tmp_path: Path, template: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(template, home / "bashgym.sqlite3")
    return Settings.from_env({"BASHGYM_DIR": str(home)})


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Ledger]:
    opened = Ledger(settings)
    yield opened
    opened.close()
