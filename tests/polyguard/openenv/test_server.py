"""The server and the typed client: sessions of their own, the same rewards as in process, nothing hidden on the wire."""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest
from openenv.cli._validation import validate_running_environment
from websockets.sync.client import connect

from polyguard import DISCLAIMER
from polyguard.client import PolyGuardEnv
from polyguard.env import reward, text
from polyguard.env.engine import Engine
from polyguard.env.tasks import COUNT, SPLITS, TASKS
from polyguard.env.types import Action
from polyguard.models import PolyGuardAction, PolyGuardObservation, PolyGuardState
from polyguard.rubric import StepRubric
from polyguard.server.polyguard_environment import PolyGuardEnvironment

PACKAGE = Path(__file__).parents[3] / "src/polyguard"
OPENENV = str(Path(sys.executable).parent / "openenv")
HIDDEN = ("true_", "latent", '"good"', "hazard", "risk_before", "supporting_facts", "resolved")


def call(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def choose(observation, number):
    return observation.candidates[number % len(observation.candidates)].candidate_id


def test_validate_accepts_the_package_and_the_running_server(url, tmp_path):
    static = [OPENENV, "validate", str(PACKAGE), "--level", "static"]
    done = subprocess.run(static, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "Verdict: PASS" in done.stdout, done.stdout + done.stderr
    found = validate_running_environment(url, timeout_s=20)  # what `validate --url` calls
    assert len(found["criteria"]) == 6 and all(item["passed"] for item in found["criteria"])
    assert found["passed"] and found["standard_profile"] == "openenv-http/1.x"


@pytest.mark.parametrize("task", TASKS)
def test_a_session_plays_what_the_engine_plays(url, task):
    engine = Engine()
    engine.reset(task, split="validation", index=3)
    with PolyGuardEnv(base_url=url).sync() as env:
        result = env.reset(task_id=task, split="validation", index=3)
        assert result.reward is None and not result.done
        assert DISCLAIMER in str(result.observation.metadata)
        for number in range(20):
            assert [c.candidate_id for c in result.observation.candidates] == list(engine._choices)
            name = choose(result.observation, 3 * number + 1)
            mine, result = engine.step(Action(name)), env.step(PolyGuardAction(candidate_id=name))
            assert result.reward == mine.reward and result.done == mine.done
            assert result.metadata["reward_breakdown"] == mine.breakdown
            state = env.state()
            assert state.step_count == engine.steps and state.task_id == task
            if result.done:
                break
    assert result.done and result.metadata["termination_reason"] == mine.termination
    assert result.metadata["episode_return"] == mine.episode_return
    assert state.done and state.termination_reason == mine.termination


def path(task, steps=3):
    """(index, choices that do not end its episode, the engine after them)."""
    for index in range(50):
        engine, names = Engine(), []
        engine.reset(task, split="test", index=index)
        for name in [f"cand_{number:02d}" for number in range(1, 6)] * steps:
            ahead = engine.clone()
            if len(names) < steps and name in ahead._choices and not ahead.step(Action(name)).done:
                engine, names = ahead, [*names, name]
        if len(names) == steps:
            return index, names, engine
    raise AssertionError(task)


def test_two_sessions_at_once_do_not_see_each_other(url):
    async def play(task, episode, found, gate):
        index, names, _ = found
        async with PolyGuardEnv(base_url=url) as env:
            await env.reset(task_id=task, split="test", index=index, episode_id=episode)
            for number, name in enumerate(names, 1):
                await asyncio.wait_for(gate.wait(), 20)  # every step of one is between two of the other
                result = await env.step(PolyGuardAction(candidate_id=name))
                state = await env.state()
                assert state.episode_id == result.observation.episode_id == episode
                assert state.task_id == task and state.step_count == number and not result.done
        return result.observation

    async def both():
        gate = asyncio.Barrier(2)
        return await asyncio.gather(*(play(task, task[-3:], path(task), gate) for task in tasks))

    tasks = ("hard/new_drug", "hard/complex_tradeoff")
    for task, seen in zip(tasks, asyncio.run(both()), strict=True):
        alone = path(task)[2].observation
        assert seen.history == alone.history and len(seen.candidates) == len(alone.candidates)
        assert seen.text == text.render(alone) and seen.step_index == 3


def test_a_step_without_an_episode_is_answered_and_changes_nothing(url):
    status, answer = call(url, "/step", {"action": {"candidate_id": "cand_01"}})
    assert status == 200 and answer["done"] is True and answer["reward"] == reward.LOW
    assert answer["metadata"]["error"] == "no_episode" and "reset" in answer["observation"]["text"]
    with PolyGuardEnv(base_url=url).sync() as env:
        first = env.step(PolyGuardAction(candidate_id="cand_01"))
        assert first.done and first.metadata["error"] == "no_episode" and env.state().step_count == 0
        result = env.reset(task_id="easy/ddi_screening", index=0)
        review = next(c for c in result.observation.candidates if c.mode == "REVIEW")
        last = env.step(PolyGuardAction(candidate_id=review.candidate_id))
        again = env.step(PolyGuardAction(candidate_id="cand_01"))
        assert last.done and again.done and again.metadata["error"] == "episode_over" and again.reward == reward.LOW
        assert env.state().step_count == 1
        assert not env.reset(task_id="easy/ddi_screening", index=0).done


@pytest.mark.parametrize(
    "options",
    [
        {"task_id": "nope"},
        {"split": "nope", "task_id": "easy/ddi_screening"},
        {"index": 20000},
        {"task_id": "easy/ddi_screening", "split": "test", "index": 200},
        {"scenario_id": "easy/ddi_screening:test:200"},
        {"index": -1},
        {"index": "0"},
        {"seed": 2**64},
        {"scenario_id": "easy/ddi_screening:test"},
        {"scenario_id": "../../etc:test:00000"},
        {"difficulty": "easy", "sub_environment": "DEPRESCRIBING"},
        {"profile": "compat"},
        {"task_id": ["easy/ddi_screening"]},
        {"episode_id": "x" * 300},
    ],
)
def test_a_wrong_option_of_reset_is_refused_and_the_session_lives(url, options):
    with pytest.raises(RuntimeError), PolyGuardEnv(base_url=url).sync() as env:
        env.reset(**options)
    with PolyGuardEnv(base_url=url).sync() as env:
        with pytest.raises(RuntimeError):
            env.reset(**options)
        assert env.state().episode_id is None
        assert not env.reset(scenario_id="easy/ddi_screening:test:00003").done


def test_over_http_a_wrong_option_is_no_server_error(url):
    assert call(url, "/reset", {"task_id": "nope"})[0] == 422
    assert call(url, "/reset", {"task_id": "x", "extra": 1})[1]["detail"]["code"] == "invalid_field"
    assert call(url, "/step", {"action": {"candidate_id": "1; drop table"}})[0] == 422
    assert call(url, "/polyguard/num_tasks", {"split": "nope"})[0] == 422
    assert call(url, "/polyguard/task", {"split": "test", "index": 2000})[0] == 400
    assert call(url, "/nope/splits")[0] == 404


def test_hostile_messages_are_refused_by_name_and_the_session_lives(url):
    deep = {"candidate_id": "cand_01", "metadata": {"a": 1}}
    bad = [
        {"candidate_id": "cand_1"},
        {"candidate_id": "cand_01", "confidence": 2},
        {"candidate_id": "cand_01", "rationale": "x" * 601},
        {"candidate_id": "cand_01", "cited_facts": ["w1"] * 9},
        {"candidate_id": "cand_01", "reward": 1},
        {"candidate_id": "cand_01", "expected_action_type": "CURE"},
        "cand_01",
    ]
    with connect(url.replace("http", "ws") + "/ws") as socket:

        def say(kind, data=None):
            socket.send(json.dumps({"type": kind, **({} if data is None else {"data": data})}))
            return json.loads(socket.recv(timeout=20))

        assert say("reset", {"task_id": "hard/missing_data", "split": "test", "index": 2})["type"] == "observation"
        for data in bad:
            answer = say("step", data)
            assert answer["type"] == "error" and answer["data"]["code"] in ("VALIDATION_ERROR", "EXECUTION_ERROR"), (
                answer
            )
        assert say("state")["data"]["step_count"] == 0
        # Half a character: OpenEnv cannot even repeat it in an error, and ends this session. Others live.
        with connect(url.replace("http", "ws") + "/ws") as other:
            other.send(json.dumps({"type": "step", "data": {"candidate_id": "cand_01", "rationale": "\ud800"}}))
            assert json.loads(other.recv(timeout=20))["data"]["code"] == "SESSION_ERROR"
        assert say("step", deep)["type"] == "observation" and say("state")["data"]["step_count"] == 1
        hidden = say("step", {"candidate_id": "cand_02", "rationale": "zero\u200bwidth"})
        assert hidden["data"]["done"] and hidden["data"]["metadata"]["termination_reason"] == "exploit_detection"
        assert hidden["data"]["metadata"]["anti_cheat_reasons"] == ["hard:parser_exploit"]


def test_there_is_an_end_to_sessions_and_to_the_length_of_a_message(url):
    address = url.replace("http", "ws") + "/ws"
    with connect(address) as socket:
        socket.send(json.dumps({"type": "step", "data": {"candidate_id": "cand_01", "rationale": "x" * 100_000}}))
        with pytest.raises(Exception, match="1009"):
            socket.recv(timeout=20)
    held = [connect(address) for _ in range(4)]
    try:
        for socket in held:
            socket.send('{"type": "state"}')
            assert json.loads(socket.recv(timeout=20))["type"] == "state"
        with connect(address) as fifth:
            assert json.loads(fifth.recv(timeout=20))["data"]["code"] == "CAPACITY_REACHED"
    finally:
        for socket in held:
            socket.close()


def test_nothing_hidden_is_on_the_wire_and_the_disclaimer_is(url):
    with connect(url.replace("http", "ws") + "/ws") as socket:
        for index in range(5):
            for task in ("hard/missing_data", "hard/new_drug", "hard/complex_tradeoff"):
                reset = {"task_id": task, "split": "test", "index": index}
                socket.send(json.dumps({"type": "reset", "data": reset}))
                for number in range(3):
                    raw = socket.recv(timeout=20)
                    seen = json.loads(raw)["data"]
                    assert not [word for word in HIDDEN if word in raw], raw
                    assert DISCLAIMER in raw
                    if seen["done"]:
                        break
                    if number < 2:
                        socket.send(json.dumps({"type": "step", "data": {"candidate_id": "cand_01"}}))
    for path in ("/metadata", "/openapi.json"):
        assert DISCLAIMER in json.dumps(call(url, path)[1]), path
    readme = call(url, "/metadata")[1]["readme_content"]
    assert "not for patient care" in readme


def test_the_task_api_names_the_scenario_that_reset_begins(url):
    assert [item["name"] for item in call(url, "/polyguard/splits")[1]] == list(SPLITS)
    declared = (PACKAGE / "openenv.yaml").read_text()
    for split in SPLITS:
        count = call(url, "/polyguard/num_tasks", {"split": split})[1]["num_tasks"]
        assert count == COUNT[split] * len(TASKS) and f"{split}: {count}" in declared
    with PolyGuardEnv(base_url=url).sync() as env:
        for index in (0, 17, 1999):
            task = call(url, "/polyguard/task", {"split": "test", "index": index})[1]["task"]
            result = env.reset(split="test", index=index)
            assert result.metadata["scenario_id"] == task["id"] and result.observation.task_id == task["task_id"]
            again = env.reset(scenario_id=task["id"])
            assert again.observation == result.observation
    rows = call(url, "/polyguard/task_range", {"split": "validation", "start": 5, "stop": 25})[1]["tasks"]
    assert [row["index"] for row in rows] == list(range(5, 25)) and len({row["id"] for row in rows}) == 20
    assert {row["task_id"] for row in rows} == set(TASKS)


def test_traces_are_written_inside_their_folder_whatever_an_episode_is_called(served):
    url, folder = served
    for name in ("../../../tmp/evil", "a/b:c", "..", "a" * 255, "a b", "\u202etxt"):
        with PolyGuardEnv(base_url=url).sync() as env:
            result = env.reset(task_id="easy/ddi_screening", split="test", index=0, episode_id=name)
            review = next(c for c in result.observation.candidates if c.mode == "REVIEW")
            assert env.step(PolyGuardAction(candidate_id=review.candidate_id)).done
    files = sorted(folder.rglob("*"))
    assert len(files) >= 6 and all(item.parent == folder and item.suffix == ".jsonl" for item in files)
    for item in files:
        rows = [json.loads(line) for line in item.read_text().splitlines()]
        assert rows[-1]["termination_reason"] and len(rows[0]["reward_breakdown"]) == 13


@pytest.mark.parametrize("profile", ["strict", "compat"])
def test_the_rubric_tree_gives_the_reward_of_the_engine(profile, monkeypatch):
    monkeypatch.setenv("POLYGUARD_REWARD_PROFILE", profile)
    env = PolyGuardEnvironment()
    assert isinstance(env.rubric, StepRubric)
    gated = 0
    for number in range(60):
        seen = env.reset(split="train", index=number)
        for turn in range(4):
            seen = env.step(PolyGuardAction(candidate_id=choose(seen, 5 * turn + number)))
            assert env.rubric.last_score == seen.reward, (number, turn)
            gated += seen.metadata["gated"]
            scores = {name: part.last_score for name, part in env.rubric.named_rubrics()}
            for channel, value in seen.metadata["primary_reward_channels"].items():
                assert scores[f"channels.{channel}"] == value
            inside = "channels.safety_legality.components.legality_score"
            assert scores[inside] == seen.metadata["reward_breakdown"]["legality_score"]
            if seen.done:
                break
    assert gated > 10


def test_the_faces_say_what_the_types_say():
    from polyguard.env import types
    from polyguard.models import CandidateAction, MissingFact, SafetyWarning

    for mine, face in (
        (types.Candidate, CandidateAction),
        (types.Warning, SafetyWarning),
        (types.Missing, MissingFact),
        (types.Observation, PolyGuardObservation),
        (types.Action, PolyGuardAction),
    ):
        names = {field.name for field in msgspec.structs.fields(mine)}
        extra = set(face.model_fields) - names
        assert names <= set(face.model_fields) and extra <= {"done", "reward", "metadata", "text"}, face
    engine = Engine()
    engine.reset("easy/ddi_screening")
    assert set(engine.public_state()) == set(PolyGuardState.model_fields)


def test_the_web_page_escapes_foreign_text():
    env = PolyGuardEnvironment()
    seen = env.reset(task_id="hard/complex_tradeoff", split="train", index=0).model_dump()
    seen["text"] = "<script>alert(1)</script>"
    page = env.render_web(seen)
    assert "<script>" not in page and DISCLAIMER in page
    actions = env.web_actions(seen)
    assert len(actions) == len(seen["candidates"]) and all(PolyGuardAction(**action) for _, action in actions)
