"""Execution, environments in both protocols, and a batch that is judged side by side."""

import time

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs import terminal
from bashgym.envs.rewards import RewardItem, RewardStatus, make_rewarder
from bashgym.envs.rewards.tools import BashEnvironment

REQUEST = {"reward_timeout_s": 10.0, "reward_workers": None, "max_tool_calls_per_episode": 8}


def rewarder(mode, **fields):
    return make_rewarder({**REQUEST, "grpo_reward_mode": mode, **fields})


def spec(**parts):
    base = {
        "instruction": "Write 42 to answer.txt",
        "files": {"verify.sh": 'test "$(cat answer.txt)" = 42', "notes.txt": "n", "tests/check.txt": "c"},
        "rollout": {"max_steps": 4, "max_tool_calls": 4, "timeout_sec": 30.0, "bash_timeout_sec": 5.0},
    }
    return {**base, **parts}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where workspaces are made; empty again after each test."""
    made = tmp_path / "workspaces"
    made.mkdir(mode=0o755)
    for parent in (made, *made.parents):
        if str(parent).startswith(str(tmp_path.parents[1])) and parent != parent.parent:
            parent.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(made))
    yield made
    assert list(made.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "reward", "status"),
    [
        ("print('hello')", 1.0, RewardStatus.PASSED),
        ("raise SystemExit(3)", 0.0, RewardStatus.FAILED),
        ("1 / 0", 0.0, RewardStatus.FAILED),
        ("while True: pass", 0.0, RewardStatus.TIMEOUT),
        ("print('x' * 100_000_000)", 0.0, RewardStatus.BLOCKED),
        ("", 0.0, RewardStatus.FORMAT_ERROR),
        ("import socket; socket.create_connection(('1.1.1.1', 53), 1)", 0.0, RewardStatus.FAILED),
    ],
)
def test_execution_pays_for_exit_status_0(code, reward, status, folder):
    with rewarder("execution", reward_timeout_s=2.0) as judge:
        (result,) = judge.score([RewardItem("p", code, {})])
    assert (result.reward, result.status) == (reward, status)


def test_a_batch_is_judged_side_by_side_and_in_order():
    items = [RewardItem("p", f"import time; time.sleep(1); raise SystemExit({i % 2})", {"n": i}) for i in range(8)]
    with rewarder("execution", reward_workers=8) as judge:
        begin = time.monotonic()
        results = judge.score(items)
        assert time.monotonic() - begin < 6
    assert [r.reward for r in results] == [1.0, 0.0] * 4


@pytest.mark.parametrize(
    ("completion", "reward", "status"),
    [
        ("echo 42 > answer.txt", 1.0, RewardStatus.PASSED),
        ("```bash\necho 4 > answer.txt\necho 42 > answer.txt\n```", 1.0, RewardStatus.PASSED),
        ("echo 41 > answer.txt", 0.0, RewardStatus.FAILED),
        ("Two lines\nof prose", 0.0, RewardStatus.FORMAT_ERROR),
        ("echo 42 > answer.txt; echo > tests/check.txt", 0.0, RewardStatus.TAMPERED),
        ("echo 'exit 0' > verify.sh", 0.0, RewardStatus.TAMPERED),
        ("sleep 60", 0.0, RewardStatus.TIMEOUT),
    ],
)
def test_an_environment_judges_one_answer(completion, reward, status, folder):
    with rewarder("environment", reward_timeout_s=2.0) as judge:
        (result,) = judge.score([RewardItem("p", completion, {"environment": spec()})])
    assert (result.reward, result.status) == (reward, status), result.detail


def test_training_and_evaluation_give_one_verdict():
    tasks = terminal.build("train", 5, 1)
    items = [
        RewardItem("p", text, {"environment": t.spec.to_dict()}) for t in tasks for text in (t.solution, t.wrong[0])
    ]
    with rewarder("environment") as judge:
        rewards = [result.reward for result in judge.score(items)]
    assert rewards == [terminal.judge(t, text).reward for t in tasks for text in (t.solution, t.wrong[0])]
    assert set(rewards) == {0.0, 1.0}


def test_components_are_parts_by_name():
    verify = 'echo \'{"reward_components": {"a": 1.0, "b": 0.5}}\''
    weighed = {"reward_type": "multi", "reward_components": [{"name": "a"}, {"name": "b", "weight": 2.0}]}
    row = {"environment": spec(verifier=weighed, files={"verify.sh": verify})}
    with rewarder("environment") as judge:
        (result,) = judge.score([RewardItem("p", "true", row)])
    assert (result.reward, result.parts) == (2.0, {"a": 1.0, "b": 0.5, "solved": 1.0})


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"environment": "env_123"},
        {"environment": {"instruction": ""}},
        {"environment": spec(build={"network_disabled": False})},
        {"environment": spec(build={"setup_commands": ["exit 3"]})},
        {"environment": spec(files={"verify.sh": "exit 127"})},
    ],
)
def test_a_broken_environment_is_no_verdict(row, folder):
    with rewarder("environment") as judge:
        (result,) = judge.score([RewardItem("p", "true", row)])
    assert (result.reward, result.status) == (None, RewardStatus.ERROR)
    tool = BashEnvironment(REQUEST)
    tool.reset(**row)
    tool.bash("true")
    assert (tool.get_reward(), tool.result.status) == (None, RewardStatus.ERROR)


@pytest.fixture
def shell(folder):
    environment = BashEnvironment(REQUEST)
    yield environment
    environment.get_reward()


def test_files_stay_from_command_to_command_and_processes_do_not(shell):
    shell.reset(environment=spec(), prompt="p", row=1)
    assert shell.bash("cat notes.txt; X=1; sleep 600 & cd /tmp") == "n"
    assert shell.bash("echo ${X:-none}; pwd; pgrep sleep || echo gone") == "none\n/work\ngone"
    assert shell.bash("echo 4 > answer.txt") == ""
    assert shell.bash("echo 42 > answer.txt; ls -d nothing") != ""
    assert (shell.get_reward(), shell.result.status) == (1.0, RewardStatus.PASSED)


def test_only_bash_is_shown_to_the_model():
    assert [name for name in vars(BashEnvironment) if not name.startswith("_")] == ["reset", "bash", "get_reward"]


def test_the_verifier_is_not_there_while_the_model_acts(shell):
    shell.reset(environment=spec())
    assert "verify.sh" not in shell.bash("find / -name verify.sh 2>/dev/null; ls")


def test_tampering_is_found_after_many_turns(shell):
    shell.reset(environment=spec())
    shell.bash("echo 42 > answer.txt")
    shell.bash("echo x >> tests/check.txt")
    assert (shell.get_reward(), shell.result.status) == (0.0, RewardStatus.TAMPERED)


@pytest.mark.parametrize(("fields", "allowed"), [({}, 4), ({"max_tool_calls_per_episode": 2}, 2)])
def test_commands_beyond_the_limit_are_not_run(folder, fields, allowed):
    shell = BashEnvironment({**REQUEST, **fields})
    shell.reset(environment=spec())
    for _ in range(allowed):
        shell.bash("true")
    for _ in range(3):
        assert "allows" in shell.bash("echo 42 > answer.txt")
    assert (shell.get_reward(), shell.result.status) == (0.0, RewardStatus.BLOCKED)


def test_a_slow_command_is_cut_and_the_episode_goes_on(shell):
    rollout = {"max_steps": 4, "max_tool_calls": 4, "timeout_sec": 30.0, "bash_timeout_sec": 1.0}
    shell.reset(environment=spec(rollout=rollout))
    assert "124 (time)" in shell.bash("sleep 60")
    shell.bash("echo 42 > answer.txt")
    assert shell.get_reward() == 1.0


def test_an_episode_out_of_time_is_a_timeout(shell):
    rollout = {"max_steps": 4, "max_tool_calls": 4, "timeout_sec": 1.0, "bash_timeout_sec": 5.0}
    shell.reset(environment=spec(rollout=rollout))
    shell.bash("echo 42 > answer.txt; sleep 60")
    assert "time is up" in shell.bash("true")
    assert (shell.get_reward(), shell.result.status) == (0.0, RewardStatus.TIMEOUT)


@pytest.mark.parametrize("command", [None, 3, ["ls"], "", "\0", "\ud800", "x" * 200_000])
def test_any_argument_of_a_tool_call_is_answered(shell, command):
    shell.reset(environment=spec())
    assert isinstance(shell.bash(command), str)


def test_a_new_episode_knows_nothing_of_the_last(shell, folder):
    shell.reset(environment=spec())
    shell.bash("echo 42 > answer.txt")
    shell.reset(environment=spec())
    assert len(list(folder.iterdir())) == 1
    assert shell.result is None
    assert shell.get_reward() == 0.0
    assert shell.bash("echo 42 > answer.txt") == "The episode is over."
    assert shell.get_reward() == 0.0


def test_a_forgotten_episode_leaves_nothing(folder):
    shell = BashEnvironment(REQUEST)
    shell.reset(environment=spec())
    shell.bash("mkdir -p a/b && chmod 0 a")
    assert list(folder.iterdir())
    del shell


def test_no_sandbox_is_said_at_the_start(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("bashgym.envs.sandbox._probed", __import__("threading").Event())
    with pytest.raises(BashGymError) as refused:
        rewarder("verification")
    assert refused.value.code == "sandbox_unavailable"
