"""A user's reward function: whatever it does, the run learns of it, and the next call works."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.reward_function import absolute, function_facts
from bashgym.envs.rewards import RewardItem, RewardStatus, make_rewarder

ITEMS = [RewardItem("p", f"answer {i}", {"n": i}) for i in range(3)]


@pytest.fixture
def scored(tmp_path):
    """`scored(body, items)`: what a function with this body says."""
    opened = []

    def score(body, items=ITEMS, timeout_s=5.0, workers=1):
        file = tmp_path / "mine.py"
        indented = "".join(f"    {line}\n" for line in body.splitlines())
        file.write_text("import os, sys, time\nCALLS = []\ndef reward(prompt, completion, row):\n" + indented)
        request = {
            "grpo_reward_mode": f"python:{file}:reward",
            "reward_timeout_s": timeout_s,
            "reward_workers": workers,
        }
        opened.append(make_rewarder(request))
        return opened[-1].score(items)

    yield score
    for rewarder in opened:
        rewarder.close()


def test_numbers_and_parts(scored):
    assert [r.reward for r in scored("return row['n'] / 2")] == [0, 0.5, 1]
    (first, *_) = scored("return {'format': 0.25, 'right': 0.5}")
    assert (first.reward, first.parts, first.status) == (0.75, {"format": 0.25, "right": 0.5}, RewardStatus.PASSED)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no luck')", "no luck"),
        ("sys.exit(3)", "SystemExit"),
        ("return float('nan')", "nan"),
        ("return float('inf')", "inf"),
        ("return {'a': float('nan')}", "nan"),
        ("return None", "NoneType"),
        ("return 'high'", "str"),
        ("return [1.0]", "TypeError"),
        ("return {}", "parts"),
        ("return {1: 1.0}", "parts"),
        ("return 10**400", "OverflowError"),
        ("return reward(prompt, completion, row)", "RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E()", "E"),
        ("return {'a': 1.7e308, 'b': 1.7e308}", "finite"),
    ],
)
def test_a_fault_is_no_verdict_and_says_why(scored, body, said):
    for result in scored(body):
        assert (result.reward, result.status) == (None, RewardStatus.ERROR)
        assert said in result.detail


def test_a_hang_ends_at_its_limit_and_the_next_call_works(scored):
    begin = time.monotonic()
    results = scored("time.sleep(600 if row['n'] == 0 else 0)\nreturn 1", timeout_s=0.5)
    assert [r.reward for r in results] == [None, 1, 1]
    assert "0.5 s" in results[0].detail
    assert time.monotonic() - begin < 20


def test_a_process_that_ends_itself_is_replaced(scored):
    results = scored("if row['n'] == 1: os._exit(0)\nif row['n'] == 2: os.kill(os.getpid(), 9)\nreturn 1")
    assert [r.reward for r in results] == [1, None, None]
    assert "ended" in results[1].detail


def test_printing_megabytes_disturbs_nothing(scored):
    assert [r.reward for r in scored("print('x' * 20_000_000)\nos.write(1, b'{}\\n' * 9999)\nreturn 1")] == [1, 1, 1]


def test_changing_the_input_changes_only_a_copy(scored):
    items = [RewardItem([{"role": "user", "content": "q"}], "a", {"n": 1, "deep": [1]})] * 2
    results = scored("row['deep'].append(2)\nprompt.clear()\nrow.pop('n')\nreturn len(row['deep'])", items)
    assert [r.reward for r in results] == [2, 2]
    assert (items[0].row, len(items[0].prompt)) == ({"n": 1, "deep": [1]}, 1)


def test_a_fork_that_comes_back_is_not_heard(scored):
    assert [r.reward for r in scored("os.fork()\nreturn row['n']")] == [0, 1, 2]


def test_what_it_started_dies_with_it(scored, tmp_path):
    body = f"import subprocess\np = subprocess.Popen(['sleep', '600'])\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))\n"
    scored(body + "time.sleep(600)", ITEMS[:1], timeout_s=1.0)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while time.monotonic() < end and _runs(pid):
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_forged_answer_on_the_channel_is_a_fault(scored):
    forged = r"""
for fd in range(3, 512):
    try: os.write(fd, b'{"id": 1, "parts": {"": 9}}\n' * 2)
    except OSError: pass
return 0
"""
    results = scored(forged)
    assert any(r.status is RewardStatus.ERROR and "out of turn" in r.detail for r in results)


def test_the_same_answer_to_the_same_row_is_judged_once(scored):
    repeated = [ITEMS[0], ITEMS[1], ITEMS[0], ITEMS[0]]
    results = scored("CALLS.append(1)\nreturn len(CALLS)", repeated)
    assert [r.reward for r in results] == [1, 2, 1, 1]


def test_several_workers_judge_at_a_time(scored):
    begin = time.monotonic()
    items = [RewardItem("p", str(i), {}) for i in range(8)]
    assert [r.reward for r in scored("time.sleep(0.5)\nreturn float(completion)", items, workers=8)] == [*range(8)]
    assert time.monotonic() - begin < 3.9


def test_it_ends_with_the_process_that_asked(tmp_path):
    file = tmp_path / "slow.py"
    body = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    file.write_text(f"import os, time\ndef r(p, c, row):\n    {body}\n")
    script = (
        "from bashgym.envs.rewards import *\n"
        f"r = make_rewarder({{'grpo_reward_mode': 'python:{file}:r', 'reward_timeout_s': 600, 'reward_workers': 1}})\n"
        "r.score([RewardItem('p', 'c', {})])"
    )
    asker = subprocess.Popen([sys.executable, "-c", script])
    try:
        end = time.monotonic() + 20
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        asker.send_signal(signal.SIGKILL)
        asker.wait()
    pid, end = int((tmp_path / "pid").read_text()), time.monotonic() + 5
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(pid)


@pytest.mark.parametrize(
    ("text", "mode", "code", "said"),
    [
        (None, "python:none.py:f", "file_missing", "none.py"),
        ("def g(): pass", "python:f.py:f", "invalid_field", "defines no f"),
        ("def f(", "python:f.py:f", "file_unreadable", "line 1"),
        ("x", "python:f.py", "invalid_field", "python:<file.py>:<function>"),
        ("x", "python:f.py:1+1", "invalid_field", "python:<file.py>:<function>"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_runs(tmp_path, monkeypatch, text, mode, code, said):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "f.py").write_text(text)
    with pytest.raises(BashGymError, match=said) as refused:
        function_facts({"grpo_reward_mode": mode})
    assert (refused.value.code, refused.value.fields) == (code, ["grpo_reward_mode"])


def test_a_file_that_cannot_be_loaded_is_refused_at_the_start(tmp_path):
    file = tmp_path / "f.py"
    file.write_text("import no_such_module\ndef f(p, c, r): return 1")
    with pytest.raises(BashGymError, match="no_such_module"):
        make_rewarder({"grpo_reward_mode": f"python:{file}:f", "reward_timeout_s": 5, "reward_workers": 1})


def test_facts_name_the_file_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.py").write_text("f = max")
    facts = function_facts({"grpo_reward_mode": "python:f.py:f"})
    assert (facts["path"], facts["function"], len(facts["sha256"])) == (str(tmp_path / "f.py"), "f", 64)
    assert absolute("python:f.py:f") == f"python:{tmp_path}/f.py:f"
    assert (absolute("answer"), function_facts({"grpo_reward_mode": "answer"})) == ("answer", None)


def test_a_function_that_changed_during_the_run_is_refused(tmp_path):
    file = tmp_path / "f.py"
    file.write_text("def f(p, c, r): return 1")
    request = {"grpo_reward_mode": f"python:{file}:f", "reward_timeout_s": 5, "reward_workers": 1}
    (tmp_path / "manifest.json").write_text(json.dumps({"reward_function": function_facts(request)}))
    make_rewarder(request, tmp_path).close()
    file.write_text("def f(p, c, r): return 2")
    with pytest.raises(BashGymError) as refused:
        make_rewarder(request, tmp_path)
    assert refused.value.code == "digest_mismatch"


def test_the_answer_mode_takes_the_mapped_column_and_never_guesses_a_zero():
    request = {
        "grpo_reward_mode": "answer",
        "reward_timeout_s": 5,
        "reward_workers": 2,
        "column_mapping": {"answer": "out"},
    }
    with make_rewarder(request) as rewarder:
        rows = [{"out": "4", "answer": "5"}, {"out": 4}, {"out": None}, {"out": {"ground_truth": "4"}}, {"out": []}]
        results = rewarder.score([RewardItem("p", "it is 4", row) for row in rows])
    assert [r.reward for r in results] == [1, 1, None, 1, None]


def test_closing_leaves_no_process(tmp_path):
    file = tmp_path / "f.py"
    file.write_text("import os\ndef f(p, c, r): return os.getpid()")
    rewarder = make_rewarder({"grpo_reward_mode": f"python:{file}:f", "reward_timeout_s": 5, "reward_workers": 1})
    pid = int(rewarder.score(ITEMS[:1])[0].reward)
    assert os.path.exists(f"/proc/{pid}")
    rewarder.close()
    assert not _runs(pid)
