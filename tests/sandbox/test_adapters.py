"""Tasks of other projects run here as their own tools would judge them."""

import asyncio
import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs.adapters import harbor, scored
from bashgym.envs.rollout import run_episode
from bashgym.envs.spec import EnvironmentSpec

pytestmark = pytest.mark.sandbox

VERIFIERS_ENVIRONMENT = """
import verifiers as vf
from datasets import Dataset

def load_environment(n=4):
    rows = [{"prompt": [{"role": "user", "content": f"What is {i}+{i}?"}], "answer": str(2 * i)} for i in range(n)]
    async def correct(completion, answer) -> float:
        return 1.0 if completion[-1]["content"].strip() == answer else 0.0
    def short(completion) -> float:
        return 1.0 if len(completion[-1]["content"]) < 5 else 0.0
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[correct, short], weights=[0.75, 0.25]))
"""


def write_answer(text):
    return [f"printf %s {shlex.quote(text)} > answer.txt"]


@pytest.mark.parametrize("name", ["basic_arithmetic", "chain_sum", "letter_counting"])
def test_reasoning_gym_answers_are_judged_by_its_own_scorer_in_the_sandbox(name):
    import reasoning_gym

    task = scored.reasoning_gym(name, 2, seed=5)[1]
    entry = reasoning_gym.create_dataset(name, size=2, seed=5)[1]
    assert task.instruction.startswith(entry["question"]) and entry["answer"] not in json.dumps(task.instruction[-40:])
    good = run_episode(task, write_answer(entry["answer"]))
    assert (good.passed, good.reward_components) == (True, {"score": 1.0}), good.detail
    bad = run_episode(task, write_answer("no idea"))
    theirs = reasoning_gym.get_score_answer_fn(name)("no idea", entry)
    assert (bad.passed, bad.reward) == (False, pytest.approx(theirs))
    assert run_episode(task, []).reward == 0.0
    assert task.withheld() == {"score.py", "entry.json"}, "neither the scorer nor the answer is shown"


def test_reasoning_gym_tasks_are_the_same_for_the_same_seed_and_survive_json():
    once, again, other = (scored.reasoning_gym("chain_sum", 3, seed) for seed in (1, 1, 2))
    assert [t.digest() for t in once] == [t.digest() for t in again] != [t.digest() for t in other]
    assert [EnvironmentSpec.from_dict(t.to_dict()).digest() for t in once] == [t.digest() for t in once]


def test_what_reasoning_gym_does_not_have_or_does_not_judge_is_refused():
    for name, said in (("no_such_set", "no_such_set"), ("rush_hour", "own answer")):
        with pytest.raises(BashGymError) as caught:
            scored.reasoning_gym(name, 1, 0)
        assert caught.value.code == "environment_invalid" and said in caught.value.message


def test_a_verifiers_environment_gives_the_reward_that_its_rubric_gives(tmp_path):
    module = tmp_path / "sums.py"
    module.write_text(VERIFIERS_ENVIRONMENT)
    tasks = scored.verifiers(module, arguments={"n": 3})
    assert [t.domain for t in tasks] == ["sums"] * 3
    spec = importlib.util.spec_from_file_location("sums", module)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    for answer in ("4", "5", "a long wrong answer"):
        state = {
            "prompt": [],
            "answer": "4",
            "completion": [{"role": "assistant", "content": answer}],
            "trajectory": [],
            "timing": None,
        }
        asyncio.run(loaded.load_environment().rubric.score_rollout(state))
        result = run_episode(tasks[2], write_answer(answer))
        assert result.reward == pytest.approx(state["reward"]), result.detail
        assert result.passed is (answer == "4")


def test_verifiers_environments_of_several_turns_are_refused(tmp_path):
    module = tmp_path / "chat.py"
    module.write_text(VERIFIERS_ENVIRONMENT.replace("vf.SingleTurnEnv(", "vf.ToolEnv(tools=[short], "))
    with pytest.raises(BashGymError, match="not a single-turn environment"):
        scored.verifiers(module)


def harbor_task(root: Path, name="hello", **files) -> Path:
    folder = root / name
    given = {
        "task.toml": '[task]\nname = "a/hello"\n[metadata]\ncategory = "files"\ntags = ["easy"]\n[verifier]\ntimeout_sec = 20.0\n'
        "[agent]\ntimeout_sec = 60.0\n[environment]\ncpus = 1\n",
        "instruction.md": "# canary 1234\n\nWrite hello into /app/out.txt.\n",
        "environment/Dockerfile": "FROM debian:stable\nWORKDIR /app\n",
        "tests/test.sh": "mkdir -p /logs/verifier\nif grep -qxf /tests/want.txt /app/out.txt; then echo 1; else echo 0; fi "
        "> /logs/verifier/reward.txt\n",
        "tests/want.txt": "hello\n",
        "solution/solve.sh": "echo hello > /app/out.txt\n",
    }
    for path, text in {**given, **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_a_harbor_task_is_solved_by_its_own_solution_and_by_nothing_else(tmp_path):
    (task,) = harbor.load(harbor_task(tmp_path).parent, without_image=True)
    assert task.instruction == "Write hello into /app/out.txt." and task.domain == "files"
    assert task.metadata["image_dropped"] is True and task.verifier.timeout_sec == 20
    solution = (tmp_path / "hello/solution/solve.sh").read_text()
    assert run_episode(task, [solution]).passed
    wrong = run_episode(task, ["echo bye > /app/out.txt; cat /tests/want.txt; echo 1 > /logs/verifier/reward.txt"])
    assert (wrong.passed, wrong.verifier_status) == (False, "failed")
    assert "No such file" in wrong.steps[0].stderr, "the tests are not there while the model acts"
    assert not run_episode(task, ["mkdir tests; echo 'exit 0' > tests/test.sh"]).passed


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        ('mkdir -p /logs/verifier; echo \'{"reward": 1.0, "other": 2}\' > /logs/verifier/reward.json', 1.0),
        ("mkdir -p /logs/verifier; echo 0.25 > /logs/verifier/reward.txt", 0.25),
    ],
)
def test_harbor_rewards_are_read_from_both_files(tmp_path, test, reward):
    task = harbor.load_task(harbor_task(tmp_path, **{"tests/test.sh": test}), without_image=True)
    assert run_episode(task, []).reward == reward


def test_harbor_tests_that_leave_no_reward_say_nothing_about_the_model(tmp_path):
    for script in ("exit 0", "mkdir -p /logs/verifier; echo nonsense > /logs/verifier/reward.txt"):
        task = harbor.load_task(harbor_task(tmp_path, **{"tests/test.sh": script}), without_image=True)
        assert run_episode(task, []).verifier_status == "reward_error"


def test_a_harbor_image_is_kept_and_needs_a_container(tmp_path):
    task = harbor.load_task(harbor_task(tmp_path))
    assert task.build.context_dir.endswith("/hello/environment") and task.build.dockerfile == "Dockerfile"
    with pytest.raises(BashGymError):
        run_episode(task, [])


def test_broken_harbor_folders_are_refused_by_name(tmp_path):
    cases = {
        "toml": {"task.toml": "[verifier\n"},
        "timeout": {"task.toml": "[verifier]\ntimeout_sec = -1\n"},
        "instruction": {"instruction.md": "# canary\n"},
    }
    for name, files in cases.items():
        with pytest.raises(BashGymError) as caught:
            harbor.load_task(harbor_task(tmp_path, name, **files))
        assert caught.value.code == "environment_invalid", name
    link = harbor_task(tmp_path, "link")
    (link / "tests/secret").symlink_to("/etc/passwd")
    with pytest.raises(BashGymError, match="is a link"):
        harbor.load_task(link)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BashGymError, match=r"no task\.toml"):
        harbor.load(tmp_path / "empty")


@pytest.fixture()
def served(tmp_path, monkeypatch):
    """`bashgym env serve` over two environments; gives its address."""
    specs = [
        {
            "id": f"say_{word}",
            "instruction": f"Write {word} into out.txt",
            "verifier": {"command": f"grep -qx {word} out.txt"},
        }
        for word in ("hello", "bye")
    ]
    path = tmp_path / "environments.jsonl"
    path.write_text("".join(json.dumps(spec) + "\n" for spec in specs))
    command = [sys.executable, "-m", "bashgym.cli.main", "env", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"http://[0-9.:]+", line):
                yield found[0]
                break
        else:
            pytest.fail("the server did not start")
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)


def test_the_official_openenv_client_plays_our_environments(served):
    from openenv.core.generic_client import GenericEnvClient

    async def play():
        async with GenericEnvClient(base_url=served) as one, GenericEnvClient(base_url=served) as two:
            first = await one.reset(index=0)
            assert first.observation["instruction"] == "Write hello into out.txt" and not first.done
            await two.reset(index=1)
            step = await one.step({"command": "echo hello > out.txt; ls"})
            assert (step.observation["stdout"], step.observation["exit_code"]) == ("out.txt\n", 0)
            assert (await two.step({"command": "ls"})).observation["stdout"] == "", "each session has its own workspace"
            done = await one.step({"command": "submit"})
            lost = await two.step({"command": "submit"})
            return done, lost

    done, lost = asyncio.run(play())
    assert (done.done, done.reward, done.observation["verifier_status"]) == (True, 1.0, "passed")
    assert (lost.done, lost.reward) == (True, 0.0)


def test_a_page_of_another_origin_gets_no_openenv_session(served):
    import websockets.sync.client

    address = served.replace("http", "ws") + "/ws"
    with pytest.raises(Exception, match=r"403|1008|rejected"):
        websockets.sync.client.connect(address, origin="http://evil.example")
    with websockets.sync.client.connect(address) as session:
        session.send(json.dumps({"type": "reset", "data": {}}))
        assert "Write hello" in session.recv(timeout=10)


def test_a_verifier_that_passes_an_untouched_workspace_is_found(tmp_path):
    path = tmp_path / "environments.jsonl"
    spec = {"id": "any", "instruction": "do it", "verifier": {"command": "true"}}
    path.write_text(
        json.dumps(spec) + "\n" + json.dumps({**spec, "id": "good", "verifier": {"command": "test -e x"}}) + "\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "bashgym.cli.main", "env", "check", str(path), "--json"], capture_output=True, text=True
    )
    found = {row["id"]: row["ok"] for row in json.loads(done.stdout)["environments"]}
    assert (done.returncode, found) == (2, {"any": False, "good": True})
    path.write_text(json.dumps(spec) + "\n{bad\n")
    done = subprocess.run(
        [sys.executable, "-m", "bashgym.cli.main", "env", "check", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 1 and "line 2" in done.stderr


def test_a_model_plays_an_openenv_server_and_a_dead_model_is_no_miss(served):
    from aiohttp import web

    from bashgym.evals.openenv import OpenEnvConfig, evaluate
    from bashgym.inference.client import ChatClient, EndpointSpec
    from tests.unit.inference.double import Double, completion

    def solve(messages):
        """Reads the word off the instruction, writes it, then submits."""
        seen = json.loads(messages[1]["content"])["instruction"]
        if len(messages) == 2:
            return json.dumps({"command": f"echo {seen.split()[1]} > out.txt"})
        return '```json\n{"command": "submit"}\n```'

    async def play(policy, server=served):
        async def answer(request):
            text = policy((await request.json())["messages"])
            return web.json_response(completion(text)) if text else web.Response(status=500)

        async with (
            Double(answer).served() as url,
            ChatClient(EndpointSpec(base_url=url, model="double"), max_tries=1) as client,
        ):
            return await evaluate(client, server, OpenEnvConfig(tasks=4, attempts=1))

    found = asyncio.run(play(solve))
    assert found["report"]["pass_at_k"] == {"1": 1.0}
    assert [a["tool_calls"] for a in found["attempts"]] == [2] * 4
    assert asyncio.run(play(lambda messages: "I refuse"))["report"]["pass_at_k"] == {"1": 0.0}
    lost = asyncio.run(play(lambda messages: None))["report"]
    assert lost["pass_at_k"] == {"1": None} and lost["missing"]["n"] == 4
    with pytest.raises(BashGymError) as caught:
        asyncio.run(play(solve, "http://127.0.0.1:9"))
    assert caught.value.code == "endpoint_unreachable"
