"""Many turns with the bash tool, through TRL's own tool loop, on a model that has learnt to call it."""

import json

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.grpo_checks import BASH_TOOL
from bashgym.envs.spec import EnvironmentSpec, Verifier

from .conftest import TINY, wait_end

pytestmark = pytest.mark.train
ASK = {"role": "user", "content": "make an empty file done"}


def _call(command):
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": _function(command)}]}


def _function(command):
    return {"name": "bash", "arguments": {"command": command}}


def _finish(workspace, request):
    run_id = workspace.runs.start(request)["run_id"]
    final = wait_end(workspace, run_id, 240)
    assert final["status"] == "completed", final
    return workspace.runs.locate(run_id)


@pytest.fixture
def caller(workspace, tmp_path):
    """A run whose model calls bash, mostly with the right command, and then says ok."""
    rows = [
        {
            "messages": [
                ASK,
                _call("touch done" if i % 3 else "ls"),
                {"role": "tool", "content": ""},
                {"role": "assistant", "content": "ok"},
            ],
            "tools": [BASH_TOOL],
        }
        for i in range(48)
    ]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = {
        "strategy": "sft",
        "base_model": TINY,
        "dataset_path": str(path),
        "use_lora": False,
        "batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 3e-3,
        "num_epochs": 9,
        "max_seq_length": 512,
        "sample_prompts": 0,
        "torch_threads": 1,
    }
    return _finish(workspace, request)


def test_episodes_run_through_the_bash_tool_and_their_verifier_rewards(workspace, tmp_path, caller):
    spec = EnvironmentSpec(
        instruction=ASK["content"],
        files={"verify.sh": "test -f done\n"},
        verifier=Verifier(path="verify.sh", command="./verify.sh"),
    ).validated()
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": [ASK], "environment": spec.to_dict()}) + "\n" for _ in range(8)))
    request = {
        "strategy": "rlvr",
        "base_model": caller.run_id,
        "dataset_path": str(path),
        "grpo_reward_mode": "environment",
        "environment_protocol": "tools",
        "echo_enabled": True,
        "max_tool_calls_per_episode": 2,
        "use_lora": False,
        "batch_size": 8,
        "gradient_accumulation_steps": 1,
        "grpo_num_generations": 8,
        "prompts_per_rollout_batch": 1,
        "grpo_temperature": 0.8,
        "max_steps": 2,
        "max_seq_length": 768,
        "max_completion_length": 160,
        "sample_prompts": 0,
        "torch_threads": 1,
    }
    run = _finish(workspace, request)
    samples = run.samples()
    assert len(samples) == 16
    assert {sample["reward"] for sample in samples} == {0.0, 1.0}, [s["status"] for s in samples]
    solved = next(sample for sample in samples if sample["reward"] == 1.0)
    assert "touch done" in json.dumps(solved["completion"]) and '"role":"tool"' in json.dumps(
        solved["completion"], separators=(",", ":")
    )
    points = [point for point in run.metrics() if "loss" in point]
    assert max(point.get("tools/call_frequency", 0) for point in points) >= 1
    assert all(point["echo_observation_tokens"] > 0 and 0 < point["echo_loss"] < 20 for point in points), points


def test_a_template_whose_calls_nobody_can_read_is_refused(workspace):
    from bashgym.training.load import load_tokenizer
    from bashgym.training.tool_calls import read_tool_calls

    tokenizer = load_tokenizer(workspace.model(TINY).path)
    read_tool_calls(tokenizer, TINY)
    text = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call><|im_end|>'
    parsed = tokenizer.parse_response(text, prefix="")
    assert parsed["tool_calls"][0]["function"] == _function("ls")
    other = load_tokenizer(workspace.model(TINY).path)
    other.chat_template = other.chat_template.replace("<tool_call>", "[call]").replace("</tool_call>", "[/call]")
    with pytest.raises(BashGymError) as caught:
        read_tool_calls(other, "other")
    assert caught.value.code == "template_failed" and other.response_template is None
