"""Every field that only some strategies have changes what is built, or is refused. A field without a line here fails."""

import importlib
import json

import pytest

from bashgym.core.errors import BashGymError
from bashgym.methods import registry
from bashgym.runs.prepare import refuse_blocked
from bashgym.training.loop import Job, _prepare_process

from .conftest import TINY
from .strategies import body, judged, transitions

pytestmark = pytest.mark.train
REWARD = "def full(prompt, completion, row):\n    return 1.0\n"


class Made:
    """A registered run that nothing launched, and the trainer that its process would build."""

    def __init__(self, workspace, request):
        prepared = workspace.runs.check(request)
        refuse_blocked(prepared)
        self.findings = {finding.code for finding in prepared.report.findings}
        self.run, _ = workspace.runs._begin(prepared)
        self.request, self.manifest = self.run.request(), self.run.manifest()
        _prepare_process(self.request)
        module, _, function = registry.get(self.request["strategy"]).builder.partition(":")
        self.built = getattr(importlib.import_module(module), function)(Job(self.run, self.request, self.manifest))

    @property
    def trainer(self):
        return self.built.trainer

    @property
    def args(self):
        return self.built.trainer.args


def arg(name):
    return lambda made: getattr(made.args, name)


def _first_row(made):
    return made.trainer.train_dataset[0]


def _shaping(made):
    return made.trainer._shaping


def _trainer(made):
    return type(made.trainer).__name__


def _n_rows(made):
    return len(made.trainer.train_dataset)


def _judged(made):
    """What the answer `0` gets for the first row."""
    row = dict(made.trainer.train_dataset[0])
    return [(r.reward, sorted(r.parts)) for r in made.trainer._judge([row["prompt"]], ["0"], [row["row"]], None)]


def _judge_distance(made):
    """How far the answer `0` is from the first row's observation."""
    row = dict(made.trainer.train_dataset[0])
    return made.trainer._judge([row["prompt"]], ["0"], [row["row"]], None)[0].parts


def _environment(made):
    factory = (made.trainer.environment_factories or {}).get(None)
    return factory and vars(factory())["_most"], made.request["interleaved_thinking"]


def _dropout(made):
    """Of the adapter: the base of the tiny model has none."""
    modules = made.trainer.model.named_modules()
    return {m.p for name, m in modules if name.endswith("lora_dropout.default") and hasattr(m, "p")}


def _judges(made):
    return [cell.cell_contents._pool._max_workers for cell in made.trainer._judge.__closure__]


def _health(made):
    return [vars(c).get("_action") for c in made.built.callbacks if type(c).__name__ == "HealthCallback"]


ENVIRONMENT = {"grpo_reward_mode": "environment", "dataset_path": "TASKS", "environment_protocol": "tools"}
WORLD = {"rwml_enabled": True, "grpo_reward_mode": "DROP", "dataset_path": "REPLAY", "max_seq_length": 256}
ENVIRONMENT |= {"max_seq_length": 1024, "max_completion_length": 64}
CHANGES = {
    # strategy: {field: (another value, what has to differ, further fields of both runs)}
    "sft": {
        "assistant_only_loss": (False, lambda made: _first_row(made)["labels"], {}),
        "completion_only_loss": (False, lambda made: _first_row(made)["labels"], {"dataset_path": "COMPLETIONS"}),
    },
    "dpo": {
        "dpo_beta": (0.5, arg("beta"), {}),
        "wrap_prompts": (True, lambda made: _first_row(made)["prompt_ids"], {}),
    },
    "grpo": {
        "grpo_num_generations": (2, lambda made: made.trainer.num_generations, {}),
        "grpo_group_size": (2, lambda made: made.trainer.num_generations, {}),
        "grpo_temperature": (0.5, arg("temperature"), {}),
        "grpo_reward_mode": ("syntax", _judged, {}),
        "reward_workers": (7, _judges, {}),
        "reward_health": ("stop", _health, {}),
        "environment_protocol": ("text", lambda made: made.trainer.environment_factories is None, ENVIRONMENT),
        "max_tool_calls_per_episode": (3, _environment, ENVIRONMENT),
        "max_completion_length": (5, arg("max_completion_length"), {}),
        "wrap_prompts": (False, lambda made: _first_row(made)["prompt"], {}),
        "grpo_beta": (0.1, arg("beta"), {}),
        "overlong_buffer": (4, _shaping, {}),
        "overlong_penalty": (3.0, _shaping, {"overlong_buffer": 4}),
        "grpo_loss_type": ("dr_grpo", arg("loss_type"), {}),
        "grpo_ratio_clip_min": (0.1, arg("epsilon"), {}),
        "grpo_ratio_clip_max": (0.4, arg("epsilon_high"), {}),
        "training_profile": ("tmax", lambda made: (_shaping(made), made.args.loss_type), {"batch_size": 32}),
        "prompts_per_rollout_batch": (2, arg("generation_batch_size"), {}),
        "token_level_loss": (True, arg("loss_type"), {}),
        "filter_zero_std_groups": (True, _shaping, {}),
        "active_sampling": (True, _shaping, {}),
        "lm_head_fp32": (True, _shaping, {}),
        "sft_warm_start_policy": ("weak_models_only", lambda made: made.findings, {}),
        "echo_enabled": (True, _shaping, ENVIRONMENT),
        "echo_aux_lambda": (0.5, _shaping, ENVIRONMENT | {"echo_enabled": True}),
        "rwml_enabled": (True, lambda made: made.request["grpo_reward_mode"], {**WORLD, "rwml_enabled": "DROP"}),
        "rwml_distance_threshold": (1.9, _judged, WORLD),
        "rwml_easy_pass_rate_threshold": (0.5, _shaping, WORLD),
        "rwml_easy_keep_probability": (0.5, _shaping, WORLD),
        "rwml_history_window": (0, lambda made: _first_row(made)["prompt"], WORLD),
        "rwml_embedding_model": (TINY, _judge_distance, WORLD),
        "rwml_kl_beta": (0.1, arg("beta"), WORLD),
    },
    "rlvr": {"grpo_reward_mode": ("answer", _judged, {"dataset_path": "BOTH"})},
    "distillation": {
        "teacher_model": (None, lambda made: made.trainer.teacher is None, {"distillation_alpha": "DROP"}),
        "teacher_temperature": (2.0, lambda made: made.trainer.objective, {}),
        "distillation_alpha": (0.1, lambda made: made.trainer.objective, {}),
        "distillation_divergence": ("reverse_kl", lambda made: made.trainer.objective, {}),
        "distillation_on_policy": (True, lambda made: made.trainer.objective, {}),
        "distillation_alignment": ("uld", lambda made: made.trainer.objective, {}),
        "max_completion_length": (9, lambda made: made.trainer.objective, {"distillation_on_policy": True}),
        "wrap_prompts": (True, lambda made: _first_row(made)["input_ids"], {}),
    },
    "session_distillation": {
        "session_distillation_alpha": (0.1, lambda made: made.trainer._alpha, {}),
        "session_distillation_temperature": (3.0, lambda made: made.trainer._temperature, {}),
        "wrap_prompts": (True, lambda made: _first_row(made)["input_ids"], {}),
    },
    "dppo": {
        "lora_dropout": (0.3, _dropout, {}),
        "dppo_divergence": ("binary_kl", lambda made: (made.trainer.divergence, made.trainer.threshold), {}),
        "dppo_binary_tv_threshold": (0.3, lambda made: made.trainer.threshold, {}),
        "dppo_binary_kl_threshold": (0.3, lambda made: made.trainer.threshold, {"dppo_divergence": "binary_kl"}),
        "dppo_scale_rewards": ("group", lambda made: made.trainer.train_dataset[0]["advantage"], {}),
    },
    "reward_model": {
        "reward_kind": ("process", _trainer, {"dataset_path": "JUDGED", "reward_kind": "preference"}),
        "reward_loss": ("mse", lambda made: made.trainer.bce, {"dataset_path": "OUTCOMES"}),
        "reward_center_coefficient": (0.01, arg("center_rewards_coefficient"), {}),
        "reward_train_split": ("eval", _n_rows, {"dataset_path": "OUTCOMES"}),
        "wrap_prompts": (True, lambda made: _first_row(made)["chosen_ids"], {}),
        "sample_prompts": (3, lambda made: len(made.built.callbacks), {}),
    },
}
REFUSED = {
    # strategy: {field: (value, error code, further fields)}
    "sft": {
        "packing": (True, "preflight_blocked", {}),
        "sft_backend": ("unsloth", "missing_extra", {}),
        "use_liger": (True, "missing_extra", {}),
    },
    "dpo": {"dpo_backend": ("unsloth", "missing_extra", {})},
    "dppo": {"dppo_backend": ("verl", "backend_unavailable", {})},
    "reward_model": {"artifact_retention": ("deployable", "invalid_field", {})},
    "grpo": {
        "grpo_backend": ("trl_vllm", "missing_extra", {}),
        "grpo_use_vllm": (False, "invalid_field", {"grpo_backend": "trl_vllm"}),
        "interleaved_thinking": (True, "invalid_field", {}),
    },
    "session_distillation": {
        "session_distillation_min_confidence": (0.9, "preflight_blocked", {}),
        "session_distillation_mask_policy": ("all", "invalid_field", {}),
        "session_distillation_context_mode": ("none", "invalid_field", {}),
        "session_distillation_reader": ("model", "invalid_field", {}),
    },
}
ELSEWHERE = {"reward_timeout_s": "tests/sandbox/test_rewards_modes.py"}
"""Fields whose effect takes a run of a reward, and the tests that show it."""


@pytest.fixture
def request_of(tmp_path):
    """A request for a strategy, with files written for the names in capitals; `DROP` leaves a field out."""
    from bashgym.envs.terminal import environment_rows

    completions = [{"prompt": f"{i}?", "completion": str(i)} for i in range(24)]
    tests = "from solution import f\n\ndef test_f():\n    assert f(2) == 4\n"
    files = {
        "TASKS": environment_rows(3, 1),
        "COMPLETIONS": completions,
        "REPLAY": [transitions(i) for i in range(8)],
        "JUDGED": [judged(kind, i) for kind in ("preference", "process") for i in range(8)],
        "OUTCOMES": [judged("outcome", i, split) for split, n in (("train", 24), ("eval", 16)) for i in range(n)],
        "BOTH": [{"prompt": f"Case {i}", "tests": tests, "answer": "0"} for i in range(12)],
    }

    def make(strategy, **fields):
        if strategy == "sft":
            rows = [
                {"messages": [{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": "x"}]}
                for r in completions
            ]
            path = tmp_path / "sft.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            whole = {**body("dpo", tmp_path), "strategy": "sft", "dataset_path": str(path)}
        else:
            whole = body(strategy, tmp_path)
        whole |= fields
        name = whole["dataset_path"]
        if name in files:
            path = tmp_path / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in files[name]))
            whole["dataset_path"] = str(path)
        return {field: value for field, value in whole.items() if value != "DROP"}

    return make


def test_every_own_field_has_a_line():
    shared = set(registry.fields_of(registry.get("grpo")))
    for name in registry.direct_names():
        own = {field.name for field in registry.get(name).own_fields}
        known = {**CHANGES.get(name, {}), **REFUSED.get(name, {}), **ELSEWHERE}
        if name == "rlvr":  # its trainer is grpo's; only the reward mode is a field of its own
            assert own <= shared
            continue
        assert own == own & known.keys(), f"{name}: {own - known.keys()}"


@pytest.mark.parametrize(("strategy", "field"), [(s, f) for s, fields in CHANGES.items() for f in fields])
def test_changing_it_changes_what_is_built(strategy, field, workspace, request_of):
    value, read, further = CHANGES[strategy][field]
    changed = request_of(strategy, **{**further, field: value})
    usual = request_of(strategy, **further)
    if field == "max_completion_length" and strategy == "grpo":
        usual.pop(field)
    assert read(Made(workspace, usual)) != read(Made(workspace, changed))


@pytest.mark.parametrize(("strategy", "field"), [(s, f) for s, fields in REFUSED.items() for f in fields])
def test_what_cannot_be_is_refused_by_its_name(strategy, field, workspace, request_of):
    value, code, further = REFUSED[strategy][field]
    with pytest.raises(BashGymError) as caught:
        refuse_blocked(workspace.runs.check(request_of(strategy, **{**further, field: value})))
    assert caught.value.code == code, caught.value.message
    assert code == "preflight_blocked" or field in caught.value.fields, caught.value.fields


def test_the_users_own_function_is_what_judges(workspace, request_of, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    made = Made(workspace, request_of("grpo", grpo_reward_mode=f"python:{tmp_path / 'reward.py'}:full"))
    assert _judged(made)[0][0] == 1.0
    assert len(made.manifest["reward_function"]["sha256"]) == 64
    assert TINY in str(made.manifest["model"]["name"])
