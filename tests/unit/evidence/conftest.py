import pytest
from evidence_run import good_run


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path / "home"))
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def run(models):
    return good_run(models)
