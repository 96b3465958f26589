import json
import math
import os
import signal
import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from bashgym.store.jsonl import JsonlTail, read_jsonl
from bashgym.store.metrics import MetricWriter, point, read_points


@given(
    st.dictionaries(
        st.text(max_size=8), st.one_of(st.floats(), st.integers(-(2**53), 2**53), st.text(), st.booleans(), st.none())
    )
)
def test_a_point_is_json_and_keeps_every_number(values):
    line = point(3, values, 1.0)
    assert json.loads(json.dumps(line, allow_nan=False))["step"] == 3
    for name, value in values.items():
        if name in ("step", "ts", "non_finite") or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if math.isfinite(value):
            assert line[name] == value
        else:
            assert line[name] is None and name in line["non_finite"]


def test_nan_is_flagged_not_dropped(tmp_path):
    writer = MetricWriter(tmp_path / "m.jsonl")
    writer.log(10, {"loss": 0.0, "grad_norm": float("nan")})
    writer.close()
    points, _ = read_points(tmp_path / "m.jsonl")
    assert points == [
        {"step": 10, "loss": 0.0, "grad_norm": None, "non_finite": {"grad_norm": "NaN"}, "ts": points[0]["ts"]}
    ]


def test_repeated_steps_after_a_resume_keep_the_newest_value(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"step":1,"loss":5}\n{"step":2,"loss":null,"non_finite":{"loss":"NaN"}}\n{"step":2,"loss":4}\n{"step":2,"eval_loss":3}\n'
    )
    points, _ = read_points(path)
    assert points == [{"step": 1, "loss": 5}, {"step": 2, "loss": 4, "eval_loss": 3}]


def test_points_older_than_100_ms_survive_sigkill(tmp_path):
    path = tmp_path / "m.jsonl"
    code = (
        "import sys, time; from pathlib import Path; from bashgym.store.metrics import MetricWriter\n"
        "w = MetricWriter(Path(sys.argv[1]))\n"
        "for i in range(100000):\n"
        "    w.log(i, {'loss': 1.0}); print(i, time.time(), flush=True); time.sleep(0.01)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    time.sleep(1.2)
    killed = time.time()
    os.kill(child.pid, signal.SIGKILL)
    out, _ = child.communicate()
    said = [(int(a), float(b)) for a, b in (line.split() for line in out.splitlines() if line.count(" ") == 1)]
    due = {step for step, at in said if at < killed - 0.1}
    assert len(due) > 30
    assert due <= {p["step"] for p in read_points(path)[0]}


def test_a_torn_line_of_a_killed_writer_does_not_swallow_the_next_point(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step":1,"loss":2}\n{"step":2,"lo')
    writer = MetricWriter(path)
    writer.log(2, {"loss": 1.5})
    writer.close()
    points, skipped = read_points(path)
    assert [p["loss"] for p in points] == [2, 1.5] and skipped == 1


def test_the_tail_reads_each_object_once_and_waits_for_whole_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    tail = JsonlTail(path)
    assert tail.read_new() == []
    path.write_bytes(b'{"a":1}\n{"a":')
    assert tail.read_new() == [{"a": 1}] and tail.read_new() == []
    with path.open("ab") as out:
        out.write(b'2}\n\0\0\0\n[1]\n{"a":3}\n')
    assert tail.read_new() == [{"a": 2}, {"a": 3}]
    assert tail.skipped == 2


def test_a_nul_tail_is_counted(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n' + b"\0" * 4096)
    assert read_jsonl(path) == ([{"a": 1}], 1)


def test_a_full_disk_keeps_points_queued(tmp_path):
    writer = MetricWriter(tmp_path / "m.jsonl")
    real = writer._handle
    writer._handle = os.open("/dev/full", os.O_WRONLY)
    writer.log(1, {"loss": 1.0})
    time.sleep(0.15)
    assert writer.error is not None and len(writer._queue) == 1
    os.close(writer._handle)
    writer._handle = real
    writer.close()
    assert [p["step"] for p in read_points(tmp_path / "m.jsonl")[0]] == [1]
