"""`bashgym training session-records`: what it prints, what it exits with."""

import json

import pytest

from bashgym.cli.main import main

from .session_cases import record, write_own, write_rows


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path / "home"))

    def called(*args):
        code = main(["training", "session-records", *args, "--json"])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, json.loads(out), err

    return called


def test_build_writes_below_data_and_its_own_output_validates(run, tmp_path):
    (tmp_path / "traces").mkdir()
    missing = "cat: note.txt: No such file or directory"
    write_own(tmp_path / "traces/a.json", ("cat note.txt", missing, 1), ("cat notes.txt", "", 0))
    code, doc, _ = run("build", "traces")
    assert (code, doc["ok"], doc["record_count"]) == (0, True, 1)
    assert {"traces_dir", "min_confidence", "validation_errors", "skipped"} <= doc.keys()
    assert run("validate", doc["output_path"])[:2] == (0, run("validate", doc["output_path"])[1])
    assert (tmp_path / "data/session_distillation/records.jsonl").is_file()


def test_nothing_found_exits_one_with_a_hint_and_a_missing_folder_is_named(run, tmp_path):
    (tmp_path / "traces").mkdir()
    code, doc, err = run("build", "traces")
    assert code == 1 and doc["ok"] is False and doc["hint"] in err
    code, doc, _ = run("build", "nowhere")
    assert code == 1 and "nowhere" in doc["detail"]["message"]


def test_an_unknown_split_is_refused_before_anything_is_read(run):
    code, doc, _ = run("build", "nowhere", "--split", "test")
    assert code == 2 and "train" in doc["detail"]["message"]


def test_validate_exits_two_and_names_row_and_field(run, tmp_path):
    path = write_rows(tmp_path / "r.jsonl", [record(0), record(1, target_span={"start": 0, "end": 3})])
    code, doc, _ = run("validate", str(path))
    assert code == 2 and doc["valid_count"] == 1
    assert any(f["field"] == "target_span" and f["rows"] == [2] for f in doc["findings"])
