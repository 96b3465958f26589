"""What differs between two runs: fields, facts, rows; and what of it counts as another experiment."""

import copy
import json

import pytest

from bashgym.core.canonical import digest_file
from bashgym.runs import diff as runs_diff
from bashgym.runs.reproduce import deviations_of
from bashgym.store.run_dir import RunDir, RunState, RunStatus

MANIFEST = {
    "code": {"version": "1", "git_commit": "a" * 40, "git_dirty": False},
    "model": {"name": "m", "path": "/x", "digest": "d" * 64, "config_digest": "e" * 64, "n_parameters": 10},
    "environment": {"python": "3.11", "implementation": "CPython", "system": "Linux", "machine": "x86_64"},
    "hardware": {"gpus": [], "compute_target": "local"},
    "backend": {"name": "plain", "reason": "auto", "load_in_4bit": False},
    "seed": 42,
}


def _run(tmp_path, name, rows, *, request=None, packages=None, metrics=None, **facts):
    run = RunDir(tmp_path / name)
    run.path.mkdir()
    data = tmp_path / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = {**copy.deepcopy(MANIFEST), **facts}
    manifest["dataset"] = {"path": str(data), "digest": digest_file(data), "rows": len(rows), "train_rows": len(rows)}
    manifest["environment"]["packages"] = packages or {"torch": "2"}
    run.write_json("manifest.json", manifest)
    run.write_json("request.json", {"strategy": "sft", "run_id": name, **(request or {})})
    run.write_state(RunState(run_id=name, strategy="sft", status=RunStatus.COMPLETED, last_metrics=metrics or {}))
    return run


def _row(key, answer):
    return {"prompt": key, "completion": answer}


def test_two_runs_of_one_recipe_are_the_same(tmp_path):
    rows = [_row("a", "1")]
    a, b = _run(tmp_path, "a", rows), _run(tmp_path, "b", rows, request={"learning_rate": 2e-5})
    doc = runs_diff.diff(a, b)
    assert doc["same"] and doc["dataset_rows"]["same"] == 1, "a field left out is its default; run_id is no recipe"


def test_every_section_names_what_differs(tmp_path):
    a = _run(tmp_path, "a", [_row("a", "1")], metrics={"loss": 1.0, "old": 2})
    b = _run(
        tmp_path,
        "b",
        [_row("a", "1")],
        request={"learning_rate": 0.1},
        packages={"torch": "3", "new": "1"},
        metrics={"loss": 0.5},
        backend={"name": "other", "reason": "auto", "load_in_4bit": False},
        hardware={"gpus": [{"model": "T4", "vram_used": 1.0}], "compute_target": "local"},
        code={"version": "1", "git_commit": "b" * 40, "git_dirty": True},
        model={**MANIFEST["model"], "digest": "f" * 64},
    )
    found = {name: [d["field"] for d in part] for name, part in runs_diff.diff(a, b)["sections"].items() if part}
    assert found == {
        "request": ["learning_rate"],
        "code": ["git_commit", "git_dirty"],
        "model": ["digest"],
        "environment": ["packages.new", "packages.torch"],
        "hardware": ["gpus"],
        "backend": ["name"],
    }
    loss = next(m for m in runs_diff.diff(a, b)["metrics"] if m["metric"] == "loss")
    assert loss == {"metric": "loss", "a": 1.0, "b": 0.5, "change": -0.5}


def test_rows_are_compared_as_a_multiset_whatever_their_order(tmp_path):
    a = _run(tmp_path, "a", [_row("k1", "1"), _row("k2", "2"), _row("k2", "2"), _row("gone", "x")])
    b = _run(tmp_path, "b", [_row("new", "y"), _row("k2", "2"), _row("k1", "mended")])
    rows = runs_diff.diff(a, b)["dataset_rows"]
    assert {k: rows[k] for k in ("added", "removed", "changed", "same")} == {
        "added": 1,
        "removed": 2,
        "changed": 1,
        "same": 1,
    }
    changed = next(e for e in rows["examples"] if e["kind"] == "changed")
    assert (changed["row"], changed["was_row"]) == (3, 1) and "mended" in changed["text"]


def test_messages_change_when_only_the_answer_does(tmp_path):
    def chat(answer):
        return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]}

    a, b = _run(tmp_path, "a", [chat("1")]), _run(tmp_path, "b", [chat("2")])
    assert runs_diff.diff(a, b)["dataset_rows"]["changed"] == 1


@pytest.mark.parametrize(("damage", "reason"), [("unlink", "is gone"), ("append", "has changed since")])
def test_a_file_that_is_not_what_was_trained_on_is_not_compared(tmp_path, damage, reason):
    a, b = _run(tmp_path, "a", [_row("a", "1")]), _run(tmp_path, "b", [_row("b", "1")])
    data = tmp_path / "b.jsonl"
    data.unlink() if damage == "unlink" else data.write_text(data.read_text() + "{}\n")
    rows = runs_diff.diff(a, b)["dataset_rows"]
    assert rows["compared"] is False and reason in rows["reason"] and "run b" in rows["reason"]


def test_many_rows_have_few_examples(tmp_path):
    a, b = _run(tmp_path, "a", [_row("z", "0")]), _run(tmp_path, "b", [_row(str(i), "é" * 999) for i in range(50)])
    rows = runs_diff.diff(a, b)["dataset_rows"]
    assert rows["added"] == 50 and len(rows["examples"]) == 4
    assert all(len(e.get("text", "")) <= 300 for e in rows["examples"])


@pytest.mark.parametrize(
    ("section", "change", "breaks"),
    [
        ("model", {"digest": "f" * 64}, True),
        ("dataset", {"digest": "f" * 64}, True),
        ("code", {"git_commit": "b" * 40}, False),
        ("environment", {"python": "3.12"}, False),
        ("hardware", {"gpus": [{"model": "T4"}]}, False),
        ("backend", {"load_in_4bit": True}, False),
    ],
)
def test_each_deviation_is_listed_and_model_and_data_break_a_repetition(tmp_path, section, change, breaks):
    run = _run(tmp_path, "a", [_row("a", "1")])
    now = run.manifest()
    assert deviations_of(run, now) == []
    now[section] = {**now[section], **change}
    (found,) = deviations_of(run, now)
    assert found["what"] == f"{section}.{next(iter(change))}" and found["breaks"] is breaks


def test_uncommitted_code_cannot_vouch_for_itself(tmp_path):
    run = _run(tmp_path, "a", [_row("a", "1")], code={"version": "1", "git_commit": "a" * 40, "git_dirty": True})
    (found,) = deviations_of(run, run.manifest())
    assert "uncommitted" in found["what"]


def test_the_diff_on_a_terminal_has_no_control_characters(tmp_path, capsys):
    from bashgym.cli.diff import _show

    a = _run(tmp_path, "a", [_row("a", "1")])
    b = _run(tmp_path, "b", [_row("\x1b[2Jx", "1")], request={"correlation_id": "x", "optim": "\x1b[31m"})
    _show(runs_diff.diff(a, b))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "optim" in out
