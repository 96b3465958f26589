"""Filtering, active sampling, shaping, references and checkpoints of the policy trainer, on real training steps."""

import math

import pytest
import torch
from transformers import TrainerCallback

from bashgym.training.groups import overlong_penalty
from bashgym.training.policy import ReferenceOff
from bashgym.training.rollouts import HealthCallback

from .grpo_tools import make_trainer

pytestmark = pytest.mark.train


def even_only(prompt, answer):
    """Only prompts with an even digit tell answers apart."""
    return 0.0 if int(prompt.split()[1]) % 2 else len(answer) / 40


def flat(prompt, answer):
    return 0.0


def weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def logged(trainer, name):
    return [point[name] for point in trainer.state.log_history if name in point]


@pytest.fixture
def made(workspace, tmp_path):
    def make(rule, name="run", **fields):
        return make_trainer(workspace.settings, tmp_path / name, rule, **fields)

    return make


def test_a_step_without_contrast_changes_nothing_not_even_by_momentum_or_decay(made):
    calls = []

    def rule(prompt, answer):
        calls.append(prompt)
        return len(answer) / 40 if len(calls) <= 8 else 1.0

    fields = {"filter_zero_std_groups": True, "weight_decay": 0.1, "lr_scheduler_type": "constant", "warmup_ratio": 0}
    once, _ = made(rule, "once", max_steps=1, **fields)
    once.train()
    calls.clear()
    more, _ = made(rule, "more", max_steps=4, **fields)
    more.train()
    assert same(weights(once), weights(more))
    assert (
        logged(more, "effective_prompt_groups") == [2, 0, 0, 0]
        and logged(more, "all_one_groups_dropped")[1:] == [2] * 3
    )
    assert logged(more, "loss")[1:] == [0.0] * 3 and all(math.isfinite(x) for x in logged(more, "grad_norm"))
    assert logged(more, "frac_reward_zero_std") == [0, 1, 1, 1] and logged(more, "entropy")[1:] == [None] * 3


def test_without_the_filter_the_raw_reward_metrics_are_there_even_when_all_is_zero(made):
    trainer, run = made(flat, max_steps=2)
    trainer.train()
    for name, value in (
        ("reward", 0.0),
        ("reward_std", 0.0),
        ("frac_reward_zero_std", 1.0),
        ("verifier_error_rate", 0.0),
    ):
        assert logged(trainer, name) == [value] * 2, name
    assert {line["kept"] for line in run.samples()} == {True}


def test_active_sampling_fills_the_batch_with_other_prompts_and_keeps_the_raw_share(made):
    trainer, run = made(even_only, rows=24, active_sampling=True, max_steps=4)
    trainer.train()
    samples = run.samples()
    kept = [line for line in samples if line["kept"]]
    assert all(int(line["prompt"].split()[1]) % 2 == 0 for line in kept)
    for step in range(1, 5):
        mine = [line for line in samples if line["step"] == step]
        raw = {line["group"]: line["prompt"] for line in mine if not line["refill"]}
        flat_ones = sum(int(prompt.split()[1]) % 2 for prompt in raw.values())
        assert logged(trainer, "frac_reward_zero_std")[step - 1] == flat_ones / len(raw)
        full = logged(trainer, "maintained_batch")[step - 1] == 1
        assert sum(line["kept"] for line in mine) == (
            8 if full else 4 * logged(trainer, "effective_prompt_groups")[step - 1]
        )
        asked = [line["prompt"] for line in mine if not line["refill"]][::4]
        assert not set(asked) & {line["prompt"] for line in mine if line["refill"]}
    assert sum(logged(trainer, "active_sampling_refills")) > 0 and sum(logged(trainer, "maintained_batch")) >= 3


def test_active_sampling_gives_up_after_four_rounds(made):
    trainer, run = made(flat, rows=40, active_sampling=True, max_steps=1)
    trainer.train()
    assert max(line["refill"] for line in run.samples()) == 4
    assert logged(trainer, "candidate_prompt_groups") == [10] and logged(trainer, "active_sampling_refills") == [8]


def test_answers_without_a_verdict_are_nobodys_zero(made):
    calls = []

    def rule(prompt, answer):
        calls.append(answer)
        return None if len(calls) % 4 == 1 else 0.25

    trainer, run = made(rule, max_steps=1)
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "reward") == [0.25] and logged(trainer, "verifier_error_rate") == [0.25]
    assert [line["kept"] for line in run.samples()] == [False, True, True, True] * 2
    assert [line["reward"] for line in run.samples()[:2]] == [None, 0.25]
    assert same(before, weights(trainer))


def test_overlong_answers_are_punished_in_a_part_of_their_own(made):
    trainer, run = made(flat, max_steps=1, overlong_buffer=4, overlong_penalty=0.5)
    trainer.train()
    lines = run.samples()
    for line in lines:
        assert line["parts"]["overlong"] == line["reward"] == overlong_penalty(line["tokens"], 6, 4, 0.5)
    mean = sum(line["parts"]["overlong"] for line in lines) / len(lines)
    assert logged(trainer, "rewards/overlong/mean") == [pytest.approx(mean)] == logged(trainer, "reward")
    assert logged(trainer, "completions/clipped_ratio") == [sum(line["truncated"] for line in lines) / len(lines)]


class _Stop(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


@pytest.mark.parametrize("stop", [3, 8])
@pytest.mark.parametrize(
    "fields",
    [
        {"use_lora": True, "lora_dropout": 0.1},
        {"prompts_per_rollout_batch": 6, "gradient_accumulation_steps": 2, "active_sampling": True, "grpo_beta": 0.1},
        {"trainer_args": {"num_iterations": 2}, "grpo_loss_type": "dapo"},
    ],
)
def test_a_run_cut_within_a_rollout_batch_or_epoch_ends_in_the_same_bits(made, fields, stop):
    def run(name, *callbacks, resume=None):
        trainer, folder = made(even_only, name, rows=12, max_steps=10, **fields)
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=resume)
        return weights(trainer), folder.path / f"checkpoint-{stop}"

    straight, _ = run("straight")
    cut, checkpoint = run("cut", _Stop(stop))
    assert not same(straight, cut)
    resumed, _ = run("resumed", resume=str(checkpoint))
    assert same(straight, resumed)


@pytest.mark.parametrize("use_lora", [True, False])
def test_an_adapter_that_training_starts_from_is_the_reference_and_is_saved_once(made, tmp_path, use_lora):
    first, _ = made(even_only, "first", use_lora=True, lora_dropout=0, max_steps=3)
    first.train()
    first.model.save_pretrained(tmp_path / "adapter")
    start = {
        "adapter": str(tmp_path / "adapter"),
        "grpo_beta": 0.2,
        "max_steps": 3,
        "warmup_ratio": 0,
        "lora_dropout": 0,
    }
    trainer, _ = made(even_only, "second", use_lora=use_lora, **start)
    trainer.add_callback(ReferenceOff())
    trainer.train()
    kl = logged(trainer, "kl")
    assert abs(kl[0]) < 1e-6 < kl[-1], kl
    if use_lora:
        assert list(trainer.model.peft_config) == ["default"]


@pytest.mark.parametrize("use_lora", [True, False])
def test_a_float32_head_scores_and_samples_in_float32_and_keeps_the_weights_as_they_are(made, use_lora):
    fields = {"dtype": "bfloat16", "use_lora": use_lora, "grpo_beta": 0.1, "max_steps": 2}
    spread = {}
    for wanted in (False, True):
        trainer, _ = made(even_only, f"head{wanted}", lm_head_fp32=wanted, **fields)
        trainer.train()
        base = trainer.model.get_base_model() if use_lora else trainer.model
        head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
        assert head.weight is embedding.weight and head.weight.dtype == torch.bfloat16
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits = head(torch.randn(3, 7, head.in_features, generator=torch.Generator().manual_seed(0)).bfloat16())
        assert logits.dtype == (torch.float32 if wanted else torch.bfloat16)
        ids = torch.arange(1, 13).view(2, 6)
        logps, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 4)
        spread[wanted] = logps
    assert not torch.equal(spread[True], spread[False])


@pytest.mark.parametrize("action", ["off", "warn", "pause", "stop"])
def test_broken_reward_rules_warn_pause_or_stop_as_asked(made, action):
    trainer, run = made(lambda prompt, answer: None, max_steps=8, reward_health=action)
    trainer.add_callback(HealthCallback(run, action))
    if action == "stop":
        with pytest.raises(Exception, match="stopped at step 5 by reward_health: the verifier itself failed for 100%"):
            trainer.train()
        assert (run.path / "checkpoint-5" / "trainer_state.json").is_file()
    else:
        trainer.train()
        assert trainer.state.global_step == 8
    assert run.control() == ("pause" if action == "pause" else "")
    alarms = [event["code"] for event in run.events() if event["type"] == "reward-alarm"]
    assert alarms == ([] if action == "off" else ["verifier_errors"])


FIELDS = [
    ("grpo_num_generations", 8),
    ("grpo_temperature", 0.5),
    ("grpo_beta", 2.0),
    ("grpo_loss_type", "dr_grpo"),
    ("grpo_loss_type", "dapo"),
    ("grpo_loss_type", "gspo"),
    ("grpo_loss_type", "bnpo"),
    ("token_level_loss", True),
    ("grpo_ratio_clip_min", 1e-6),
    ("grpo_ratio_clip_max", 1e-6),
    ("prompts_per_rollout_batch", 4),
    ("max_completion_length", 5),
    ("overlong_buffer", 3),
    ("filter_zero_std_groups", True),
    ("active_sampling", True),
]


@pytest.fixture(scope="module")
def baseline():
    return {}


@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_the_field_changes_what_is_learned(made, baseline, name, value):
    """Against a run whose rollout batch spans two optimizer steps, so that ratios leave 1."""
    common = {"prompts_per_rollout_batch": 2, "gradient_accumulation_steps": 1, "max_steps": 4, "warmup_ratio": 0}
    common |= {"max_seq_length": 64, "max_completion_length": 48}  # long enough for some answers to end by themselves
    if not baseline:
        trainer, _ = made(even_only, "plain", **common)
        trainer.train()
        baseline.update(weights(trainer))
    trainer, _ = made(even_only, "changed", **{**common, name: value})
    trainer.train()
    assert not same(baseline, weights(trainer))
