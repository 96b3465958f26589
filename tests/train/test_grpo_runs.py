"""GRPO and RLVR from request to finished run: they learn, by their rewards, what held-out prompts then show."""

import json
import random
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs.rewards.extract import same_answer
from bashgym.evals.stats import item_bootstrap
from bashgym.runs.prepare import prepare

from .conftest import TINY, wait_end

pytestmark = pytest.mark.train
SMALL = {
    "base_model": TINY,
    "use_lora": False,
    "max_seq_length": 64,
    "max_completion_length": 6,
    "batch_size": 32,
    "gradient_accumulation_steps": 1,
    "grpo_group_size": 8,
    "grpo_temperature": 1.0,
    "warmup_ratio": 0,
    "lr_scheduler_type": "constant",
    "save_steps": 100,
    "sample_prompts": 0,
    "torch_threads": 1,
}
REWARD = """
def digits(prompt, completion, row):
    return sum(c in row["wanted"] for c in completion) / max(1, len(completion))
"""


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def finished(workspace, request):
    run_id = workspace.runs.start(request)["run_id"]
    final = wait_end(workspace, run_id, 240)
    assert final["status"] == "completed", final
    return workspace.runs.locate(run_id)


def gain(before, after, prompts, judge):
    """(low, high) of the mean difference of rewards on held-out prompts, four answers each."""
    import torch

    from bashgym.inference.local import generate
    from bashgym.training.load import load_model, load_tokenizer

    torch.set_num_threads(1)
    means = []
    for folder in (before, after):
        model, tokenizer = load_model(folder, dtype=torch.float32).eval(), load_tokenizer(folder)
        asked = [prompt for prompt in prompts for _ in range(4)]
        answers = generate(model, tokenizer, asked, max_new_tokens=6, temperature=1.0, seed=0)
        scores = [judge(answer) for answer in answers]
        means.append([sum(scores[i : i + 4]) / 4 for i in range(0, len(scores), 4)])
    found = item_bootstrap([b - a for a, b in zip(*means, strict=True)], ["all"] * len(prompts))
    return found.low, found.high


def test_grpo_raises_the_users_own_reward_on_prompts_it_never_saw(workspace, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"digit {i}", "wanted": "0123456789"} for i in range(40)]
    request = {
        **SMALL,
        "strategy": "grpo",
        "dataset_path": write(tmp_path / "rows.jsonl", rows),
        "grpo_reward_mode": f"python:{tmp_path / 'reward.py'}:digits",
        "grpo_loss_type": "dapo",
        "learning_rate": 2e-3,
        "max_steps": 40,
    }
    run = finished(workspace, request)
    base = Path(run.manifest()["model"]["path"])
    held_out = [f"digit {i}" for i in range(100, 140)]
    low, high = gain(base, run.file("final"), held_out, lambda a: sum(c.isdigit() for c in a) / max(1, len(a)))
    assert low > 0.2, (low, high)
    assert len(run.samples()) == 40 * 32


def test_rlvr_raises_the_share_of_right_answers_after_an_sft_start(workspace, tmp_path):
    draw = random.Random(0)
    turns = [
        {
            "prompt": [{"role": "user", "content": f"case {i}: how many?"}],
            "completion": [{"role": "assistant", "content": str(draw.randrange(5))}],
        }
        for i in range(160)
    ]
    common = {name: value for name, value in SMALL.items() if not name.startswith(("grpo_", "max_completion"))}
    sft = {**common, "strategy": "sft", "batch_size": 16, "learning_rate": 5e-3, "num_epochs": 2}
    start = finished(workspace, {**sft, "dataset_path": write(tmp_path / "sft.jsonl", turns)})
    rows = [{"prompt": f"case {i}: how many?", "tests": "assert True", "answer": "3"} for i in range(200, 360)]
    request = {
        **SMALL,
        "strategy": "rlvr",
        "base_model": start.run_id,
        "dataset_path": write(tmp_path / "rows.jsonl", rows),
        "grpo_reward_mode": "answer",
        "wrap_prompts": True,
        "sft_warm_start_policy": "always",
        "learning_rate": 1e-3,
        "max_steps": 24,
    }
    run = finished(workspace, request)
    held_out = [[{"role": "user", "content": f"case {i}: how many?"}] for i in range(1000, 1060)]
    low, high = gain(start.file("final"), run.file("final"), held_out, lambda a: float(same_answer(a, "3")))
    assert low > 0.1, (low, high)


def test_a_model_without_an_sft_pass_is_blocked_where_the_policy_asks_for_one(workspace, tmp_path):
    rows = [{"prompt": f"case {i}", "answer": "3"} for i in range(8)]
    request = {
        **SMALL,
        "strategy": "grpo",
        "grpo_reward_mode": "answer",
        "dataset_path": write(tmp_path / "r.jsonl", rows),
    }
    request |= {"batch_size": 8, "sft_warm_start_policy": "always"}
    assert [f.code for f in prepare(request, workspace.settings).blocked] == ["sft_warm_start_missing"]
    weak = prepare({**request, "sft_warm_start_policy": "weak_models_only"}, workspace.settings)
    assert not weak.blocked and "sft_warm_start_missing" in [f.code for f in weak.report.findings]


def test_arguments_of_trl_that_our_fields_decide_are_refused_by_their_name(workspace, tmp_path):
    rows = [{"prompt": f"case {i}", "answer": "3"} for i in range(8)]
    request = {**SMALL, "strategy": "grpo", "dataset_path": write(tmp_path / "r.jsonl", rows), "batch_size": 8}
    with pytest.raises(BashGymError) as caught:
        prepare({**request, "trainer_args": {"epsilon_high": 0.3}}, workspace.settings)
    assert caught.value.code == "field_has_flag" and "grpo_ratio_clip_max" in caught.value.message


def test_a_pause_by_reward_health_says_why(workspace, tmp_path):
    rows = [{"prompt": f"case {i}", "answer": "no model says this"} for i in range(64)]
    request = {
        **SMALL,
        "strategy": "grpo",
        "grpo_reward_mode": "answer",
        "dataset_path": write(tmp_path / "r.jsonl", rows),
        "batch_size": 8,
        "reward_health": "pause",
    }
    run_id = workspace.runs.start(request)["run_id"]
    final = wait_end(workspace, run_id)
    assert final["status"] == "paused", final
    assert final["message"].startswith("paused at a checkpoint by reward_health: ")
    assert final["last_checkpoint"]
