"""The two scripts as a user runs them: from an empty folder, as a process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bashgym.core.canonical import digest_file
from polyguard import DISCLAIMER
from polyguard.knowledge import load
from polyguard.knowledge.tables import read_tables

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name, *argv, cwd):
    return subprocess.run(
        [sys.executable, str(SCRIPTS / name), *argv], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_tables_of_the_package_are_valid(tmp_path):
    done = script("validate_knowledge.py", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert (report["valid"], report["version"], report["rows"]["drugs"]) == (True, load().version, 121)
    assert report["disclaimer"] == DISCLAIMER
    assert sum(report["interactions"]["pairs_by_severity"].values()) == report["interactions"]["pairs"]
    words = script("validate_knowledge.py", cwd=tmp_path)
    assert words.returncode == 0
    assert load().version in words.stdout
    assert DISCLAIMER in words.stdout


def test_faults_of_a_file_are_told_and_fail(tmp_path):
    tables = read_tables()
    tables["substitutions"][0]["to"] = "gold"
    (tmp_path / "mine.json").write_text(json.dumps(tables))
    done = script("validate_knowledge.py", "--tables", "mine.json", cwd=tmp_path)
    assert done.returncode == 1
    assert "substitutions: gold does not exist" in done.stdout


@pytest.mark.parametrize(
    ("text", "code"), [(None, "file_missing"), ("{", "file_unreadable"), ("[]", "file_unreadable")]
)
def test_a_file_that_is_no_table_is_an_error_with_a_code(tmp_path, text, code):
    if text is not None:
        (tmp_path / "mine.json").write_text(text)
    done = script("validate_knowledge.py", "--tables", "mine.json", cwd=tmp_path)
    assert done.returncode == 1
    assert code in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty")
    done = script("bootstrap_data.py", "--patients", "12", "--json", cwd=path)
    assert done.returncode == 0, done.stderr
    (path / "stdout.json").write_text(done.stdout)
    return path


def test_bootstrap_writes_what_its_summary_says(folder):
    summary = json.loads((folder / "stdout.json").read_text())
    assert summary == json.loads((folder / "data/artifacts/bootstrap_data_summary.json").read_text())
    assert summary["status"] == "ok"
    assert summary["disclaimer"] == DISCLAIMER
    assert len(summary["files"]) == 9
    for name, row in summary["files"].items():
        assert digest_file(folder / "data/processed" / name) == row["sha256"]
    assert DISCLAIMER in (folder / summary["docs_report"]).read_text()
    assert str(folder) not in json.dumps(summary)


def test_a_second_bootstrap_gives_the_same_bytes(folder, tmp_path):
    done = script("bootstrap_data.py", "--patients", "12", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == json.loads((folder / "stdout.json").read_text())


def test_patients_of_the_file_show_nothing_latent(folder):
    text = (folder / "data/processed/patients_synthetic.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len({row["patient_id"] for row in rows}) == 12
    assert len({row["task_id"] for row in rows}) == 10
    assert all(row["medications"] for row in rows)
    assert not any(word in text for word in ("latent", "true_risk", "phenotype", "hidden", "otc_drugs"))


def test_a_wrong_option_is_a_usage_error(tmp_path):
    done = script("bootstrap_data.py", "--patients", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--patients" in done.stderr
    assert not (tmp_path / "data").exists()
