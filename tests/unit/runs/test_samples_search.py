"""Search over samples.jsonl: filters, order, torn files, memory, and hostile text on a terminal."""

import json
import tracemalloc

import pytest

from bashgym.cli.samples import _indented, _show
from bashgym.core.errors import BashGymError
from bashgym.runs.samples import search
from bashgym.store.run_dir import RunDir

SAMPLES = [
    {"step": 1, "prompt": "red apple", "completion": "a", "reward": 0.0, "status": "failed"},
    {
        "step": 2,
        "prompt": [{"role": "user", "content": "green apple"}],
        "completion": "b",
        "reward": 0.5,
        "status": "ok",
    },
    {"step": 2, "prompt": "plum", "completion": "apple pie", "reward": 1.0, "status": "ok"},
    {"step": 5, "prompt": "pear", "completion": "c", "expected": "apple"},
    {"step": 9, "prompt": "fig", "completion": None, "reward": None, "status": "timeout"},
]


@pytest.fixture
def run(tmp_path):
    made = RunDir(tmp_path / "r")
    made.path.mkdir()
    made.file("samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SAMPLES))
    return made


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"grep": "apple"}, [0, 1, 2, 3]),
        ({"grep": "Apple"}, []),
        ({"step": "2"}, [1, 2]),
        ({"step": "2:5"}, [1, 2, 3]),
        ({"step": ":2"}, [0, 1, 2]),
        ({"step": "5:"}, [3, 4]),
        ({"min_reward": 0.5}, [1, 2]),
        ({"max_reward": 0.5}, [0, 1]),
        ({"min_reward": 0.0, "max_reward": 0.0}, [0]),
        ({"status": "ok", "grep": "pie"}, [2]),
        ({"limit": 2}, [3, 4]),
    ],
)
def test_each_filter_narrows_and_all_of_them_count(run, filters, found):
    assert search(run, **filters)["samples"] == [SAMPLES[i] for i in found]


def test_the_number_of_matches_is_told_beyond_the_limit(run):
    doc = search(run, grep="apple", limit=1)
    assert (doc["scanned"], doc["matched"], len(doc["samples"])) == (5, 4, 1)


@pytest.mark.parametrize("step", ["", "x", ":", "1:2:3", "-1", "1.5", "a:3"])
def test_a_step_that_is_none_is_refused_with_examples(run, step):
    with pytest.raises(BashGymError) as refused:
        search(run, step=step)
    assert refused.value.code == "invalid_field" and "10:20" in refused.value.hint


def test_torn_and_foreign_lines_are_counted_not_fatal(run):
    with run.file("samples.jsonl").open("ab") as out:
        out.write(b'\xff\xfe\n[1]\n{"step": true, "reward": "high"}\n{"step": 10, "prom')
    doc = search(run)
    assert doc["unreadable"] == 2 and doc["scanned"] == 6


def test_a_run_without_samples_has_none(tmp_path):
    (tmp_path / "empty").mkdir()
    assert search(RunDir(tmp_path / "empty"))["samples"] == []


def test_memory_does_not_grow_with_the_file(run):
    line = json.dumps({"step": 1, "prompt": "x" * 2000, "completion": "y" * 2000}) + "\n"
    with run.file("samples.jsonl").open("w") as out:
        for _ in range(10_000):
            out.write(line)
    tracemalloc.start()
    doc = search(run, limit=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert doc["scanned"] == 10_000 and peak < 12 << 20, f"{peak} bytes for a file of {len(line) * 10_000}"


def test_control_characters_never_reach_the_terminal(capsys):
    evil = "\x1b]0;owned\x07line\r\x9b2J\nsecond\x1b[31m"
    sample = {"step": evil, "status": evil, "prompt": [{"role": "user", "content": evil}], "completion": evil}
    _show({"samples": [sample], "matched": 1, "scanned": 1})
    out = capsys.readouterr().out
    assert not any((ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 for c in out)
    assert "line" in out and _indented("a\nb") == "a\n    b"
