"""Rollouts against models and endpoints that mean harm, and the limits that hold them."""

import json
import os
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bashgym.core.errors import BashGymError, fail
from bashgym.data.replay_records import read_records
from bashgym.envs import rollout as episodes
from bashgym.evals.local_rollouts import local_rollouts
from bashgym.evals.rollout_protocol import Act, understand
from bashgym.inference.client import ChatReply
from tests.sandbox.test_rollouts import SPECS, call, completion, endpoint, oracle, play, settings, spec  # noqa: F401

SUBMIT = json.dumps({"command": "submit"})


def answering(*commands):
    """A policy that says these commands in turn, then submits."""

    def policy(body):
        said = sum(message["role"] == "assistant" for message in body["messages"])
        return completion(json.dumps({"command": commands[said]}) if said < len(commands) else SUBMIT)

    return policy


def one(settings, policy, environment=SPECS[0], **more):  # noqa: F811
    with endpoint(policy) as (where, bodies):
        found = play(settings, where, [environment], **{"use_tool_calling": False, **more})
    return found["rollouts"][0], found["attempts"][0], bodies, found


def test_half_a_character_in_a_command_harms_its_own_answer_only(settings, tmp_path):  # noqa: F811
    arguments = '{"command": "echo \\ud800"}'
    tool = [{"id": "1", "type": "function", "function": {"name": "run_command", "arguments": arguments}}]

    def policy(body):
        return completion(None, tool_calls=tool) if len(body["messages"]) == 2 else oracle({**body, "tools": None})

    more = {"use_tool_calling": True, "rollouts_path": str(tmp_path / "r.jsonl"), "max_tool_calls": 3}
    rollout, attempt, _, _ = one(settings, policy, **more)
    assert rollout["steps"][0]["exit_code"] == 2 and attempt["passed"] is False and rollout["ended"] == "submit"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (completion(SUBMIT, usage=(10**30, 1)), "tokens"),
        (completion(SUBMIT, usage=(-1, 1)), "negative"),
        (completion("x" * (2 << 20)), "characters"),
        (completion(SUBMIT, logprobs=[("x", 0.5)]), "log probability"),
        ({"choices": []}, "choices"),
        ({"choices": [{"message": {"content": [1]}}]}, "wrong form"),
    ],
)
def test_answers_that_no_honest_endpoint_gives_are_missing_observations(settings, tmp_path, made, said):  # noqa: F811
    path = tmp_path / "replay.jsonl"
    more = {"capture_logprobs": True, "dppo_replay_output_path": str(path)}
    rollout, attempt, _, found = one(settings, lambda body: made, **more)
    assert attempt["passed"] is None and said in rollout["error"]["message"]
    assert rollout["steps"][-1]["exit_code"] == 502 and read_records(path) == []
    assert found["report"]["missing"]["n"] == 1


def test_an_endpoint_without_counts_is_held_to_estimates_and_that_is_said(settings):  # noqa: F811
    def policy(body):
        made = completion(json.dumps({"command": "echo " + "x" * 400}))
        del made["usage"]
        return made

    environment = spec("a", rollout={"max_response_tokens": 150})
    rollout, attempt, bodies, found = one(settings, policy, environment)
    assert rollout["ended"] == "max_response_tokens" and len(bodies) == 2 and attempt["action_tokens"] > 200
    assert attempt["metadata"]["token_counts"] == "estimated" and "estimated" in found["warnings"][0]


def test_every_answer_is_a_step_and_the_limit_is_named(settings):  # noqa: F811
    environment = spec("a", rollout={"max_steps": 2})
    rollout, _, bodies, _ = one(settings, lambda body: completion("hm"), environment)
    assert rollout["ended"] == "max_steps" and len(bodies) == 2
    rollout, attempt, bodies, _ = one(settings, answering("true", "echo a > out.txt", "true"), environment)
    assert (rollout["ended"], attempt["passed"], len(bodies)) == ("max_steps", True, 2)


def test_commands_have_the_time_that_the_environment_gives_them(settings):  # noqa: F811
    for allowed, status, passed in ((0.5, "timeout", False), (30, "passed", True)):
        environment = spec("a", rollout={"bash_timeout_sec": allowed})
        rollout, attempt, _, _ = one(settings, answering("sleep 1; echo a > out.txt"), environment)
        assert (attempt["verifier_status"], attempt["passed"]) == (status, passed)
    assert rollout["steps"][0]["exit_code"] == 0


def test_a_conversation_that_outgrows_the_model_is_judged_and_no_missing_observation(settings):  # noqa: F811
    def policy(body):
        if len(body["messages"]) > 2:
            return 400, {"error": {"message": "This model's maximum context length is 2048 tokens"}}
        return answering("echo a > out.txt")(body)

    rollout, attempt, _, found = one(settings, policy)
    assert (rollout["ended"], attempt["passed"], found["report"]["missing"]["n"]) == ("context_length", True, 0)


def test_tokens_are_counted_once(settings):  # noqa: F811
    def policy(body):
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        text = SUBMIT if turn == 2 else json.dumps({"command": "ls"})
        return completion(text, usage=(100 + 30 * turn, 10))  # 20 tokens of observation a turn

    _, attempt, _, _ = one(settings, policy)
    counts = {name: attempt[name] for name in ("tokens", "action_tokens", "observation_tokens")}
    assert counts == {"tokens": 170, "action_tokens": 30, "observation_tokens": 40}


@pytest.mark.parametrize("name", ["dppo_replay_output_path", "rollouts_path", "workspace_root"])
@pytest.mark.parametrize(
    ("path", "code"), [("/proc/none/x", "directory_unwritable"), ("a\0b", "invalid_field"), ("", "invalid_field")]
)
def test_what_cannot_be_written_is_refused_before_a_rollout_is_paid_for(settings, name, path, code):  # noqa: F811
    if name == "workspace_root" and not path:
        path = "\n"
    with endpoint(oracle) as (where, bodies), pytest.raises(BashGymError) as caught:
        play(settings, where, **{name: path, "keep_workspace": True})
    assert (caught.value.code, caught.value.fields, bodies) == (code, [name], [])


def test_workspaces_that_no_copy_can_hold_are_kept_as_far_as_possible(settings, tmp_path):  # noqa: F811
    deep = 'python3 -c \'import os\nfor i in range(1200): os.mkdir("d"); os.chdir("d")\''
    odd = "mkfifo p; ln -s /etc/passwd l; touch n; chmod 000 n; echo a > out.txt"
    mine = tmp_path / "ws/say_a-0/mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for command in (deep, odd):
        more = {"keep_workspace": True, "workspace_root": str(tmp_path / "ws")}
        rollout, _, _, _ = one(settings, answering(command), **more)
    assert mine.read_text() == "mine", "what was there is somebody's"
    kept = os.listdir(rollout["workspace"])
    assert {"out.txt", "l", "n"} <= set(kept) and "p" not in kept and os.path.islink(f"{rollout['workspace']}/l")
    first = tmp_path / "ws/say_a-0.again"
    assert (first / ".bashgym-incomplete").is_file() and (first / "d").is_dir()


def test_a_journal_is_bound_to_what_decides_the_episodes_and_to_one_writer(settings, tmp_path):  # noqa: F811
    path = tmp_path / "r.jsonl"
    with endpoint(oracle) as (where, bodies):
        play(settings, where, rollouts_path=str(path))
        paid = len(bodies)
        more = {"dppo_replay_output_path": str(tmp_path / "replay.jsonl"), "model_id": "other", "request_timeout": 9}
        again = play(settings, where, rollouts_path=str(path), **more)
        assert len(bodies) == paid and again["report"]["pass_at_k"] == {"1": 1.0}, "reports may differ, episodes not"
        with open(f"{path}.request.json") as handle:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
            with pytest.raises(BashGymError) as caught:
                play(settings, where, rollouts_path=str(path))
    assert caught.value.code == "request_in_progress"


def test_stop_on_error_says_how_much_was_not_played(settings):  # noqa: F811
    with endpoint(lambda body: (400, {"error": {"message": "no"}})) as (where, _):
        found = play(settings, where, stop_on_error=True, max_concurrency=1)
    assert "2 of 3 attempts were not played" in found["warnings"][0]


def test_what_lacks_too_much_is_reported_and_not_recorded(settings):  # noqa: F811
    def lame(body):
        return (400, {"error": {"message": "no"}}) if "Write b" in body["messages"][1]["content"] else oracle(body)

    with endpoint(lame) as (where, _):
        found = play(settings, where)
    assert found["recorded"] is False and found["report"]["missing"]["n"] > 0
    assert found["warnings"][-1].startswith("not recorded: the endpoint failed in ")


def test_a_fault_of_the_machine_ends_all_and_leaves_no_workspace(settings, monkeypatch):  # noqa: F811
    made = episodes.temporary_workspace

    @contextmanager
    def broken(*given):
        def run(command, **more):
            if "b >" in command:
                raise fail("sandbox_unavailable", "gone")
            return workspace.run(command, **more)

        with made(*given) as workspace:
            folders.append(workspace.work.parent)
            yield replace(workspace, run=run)

    folders = []
    monkeypatch.setattr(episodes, "temporary_workspace", broken)
    with endpoint(oracle) as (where, _), pytest.raises(BashGymError) as caught:
        play(settings, where, use_tool_calling=False)
    assert (caught.value.code, caught.value.message) == ("sandbox_unavailable", "gone")
    assert len(folders) == len(SPECS) and not any(folder.exists() for folder in folders)


def test_given_commands_stop_at_the_first_failure_and_keep_what_they_left(settings, tmp_path):  # noqa: F811
    tries = [{"environment_id": "say_a", "attempt_index": 0, "commands": ["false; true", "false", "echo a > out.txt"]}]
    body = {"environments": SPECS[:1], "command_attempts": tries, "allow_dangerous_commands": True}
    stopped = local_rollouts(settings, body)
    assert [step["command"] for step in stopped["rollouts"][0]["steps"]] == ["false; true", "false"]
    assert stopped["report"]["pass_at_k"] == {"1": 0.0} and "no effect" in stopped["warnings"][0]
    kept = {"stop_on_error": False, "keep_workspace": True, "workspace_root": str(tmp_path / "kept")}
    whole = local_rollouts(settings, {**body, **kept})
    assert whole["report"]["pass_at_k"] == {"1": 1.0} and stopped["recorded"] is False
    assert (tmp_path / "kept/say_a-0/out.txt").read_text() == "a\n"
    assert whole["rollouts"][0]["workspace"] == str(tmp_path / "kept/say_a-0")


@pytest.mark.parametrize(
    ("text", "act", "command"),
    [
        ('I will look.\n```json\n{"command": "ls"}\n```\nThen more.', Act.COMMAND, "ls"),
        ('<think>{"command": "rm -r x"}</think>\n{"command": "ls"}', Act.COMMAND, "ls"),
        ("<think>hm</think> submit", Act.SUBMIT, ""),
        ('```\n{"command": "a"}\n```\n```\n{"command": "b"}\n```', Act.UNPARSABLE, ""),
        ('<think>{"command": "ls"}', Act.UNPARSABLE, ""),
        ('{"command": "a\\ud800"}', Act.UNPARSABLE, ""),
        ("```" * 200_000, Act.UNPARSABLE, ""),
        ("<think>" * 100_000, Act.UNPARSABLE, ""),
    ],
)
def test_thoughts_and_fences_around_an_answer(text, act, command):
    reply = ChatReply(text, [], "stop", 1, 1, None, 0.0, 1, "m")
    assert (understand(reply).act, understand(reply).command) == (act, command)


def test_tool_calls_beyond_the_first_are_not_run(settings):  # noqa: F811
    two = [*call("echo a > out.txt"), *call("rm out.txt")]

    def policy(body):
        spoken = len(body["messages"]) > 2
        return completion(None, tool_calls=call(None, "submit") if spoken else two)

    rollout, attempt, _, _ = one(settings, policy, use_tool_calling=True)
    assert attempt["passed"] is True and len(rollout["steps"]) == 1
    assert len(rollout["messages"][2]["tool_calls"]) == 1, "each call that stays in the conversation is answered"
