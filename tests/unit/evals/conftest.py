"""A workspace of its own, and held-out rows in a file."""

import json

import pytest

from bashgym.core.settings import Settings


@pytest.fixture()
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("BASHGYM_MODELS_DIR", str(tmp_path / "data/models"))
    return Settings.from_env()


@pytest.fixture()
def dataset(tmp_path):
    def write(rows):
        path = tmp_path / "heldout.jsonl"
        path.write_text("".join(json.dumps(value) + "\n" for value in rows))
        return str(path)

    write.path = tmp_path / "heldout.jsonl"
    return write
