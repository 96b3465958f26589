"""The registry is consistent with itself and with what the specification lists."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from bashgym.core.errors import BashGymError
from bashgym.methods import registry
from bashgym.methods.aliases import FIELD_ALIASES
from bashgym.methods.spec import EvidenceKind, Field, Kind, Role

DIRECT = ["sft", "dpo", "grpo", "rlvr", "distillation", "session_distillation", "dppo", "reward_model"]


def every_field() -> Iterator[Field]:
    yield from registry.FIELDS.values()
    for method in registry.METHODS.values():
        yield from method.own_fields


def test_direct_strategies_are_those_of_the_request() -> None:
    assert registry.direct_names() == DIRECT


def test_every_direct_strategy_has_a_trainer_and_no_other() -> None:
    assert [m.name for m in registry.METHODS.values() if m.builder] == registry.direct_names()


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("session-distillation", "session_distillation"),
        ("session", "session_distillation"),
        ("reward-model", "reward_model"),
        ("rm", "reward_model"),
        ("preference-rm", "reward_model"),
        ("orm", "reward_model"),
        ("prm", "reward_model"),
        ("world-model", "world_model"),
        ("mopd", "cascade"),
    ],
)
def test_aliases_lead_to_their_method(alias: str, name: str) -> None:
    assert registry.get(alias).name == name


def test_no_alias_is_also_a_name_or_given_twice() -> None:
    aliases = [alias for method in registry.METHODS.values() for alias in method.aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(registry.METHODS)


@pytest.mark.parametrize("name", ["sfft", "SFT", "", "ppo\0", "x" * 10_000])
def test_unknown_method_is_refused_by_code(name: str) -> None:
    with pytest.raises(BashGymError) as caught:
        registry.get(name)
    assert caught.value.code == "unknown_strategy"
    assert caught.value.fields == ["strategy"]
    assert len(caught.value.message) < 500


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(BashGymError) as caught:
        registry.get("distilation")
    assert "Did you mean distillation?" in caught.value.hint


def test_every_field_has_help_a_known_default_and_sane_bounds() -> None:
    for field in every_field():
        assert field.help and field.name.isidentifier(), field.name
        if field.name not in ("base_model", "dataset_path") and field.nullable:
            assert field.default is None, field.name
        if field.minimum is not None and field.maximum is not None:
            assert field.minimum < field.maximum, field.name
        if field.choices and field.kind is Kind.STR and field.default is not None:
            assert field.default in field.choices, field.name
        assert set(field.value_aliases.values()) <= set(field.choices), field.name


@pytest.mark.parametrize(
    ("name", "default", "minimum", "maximum"),
    [
        ("num_epochs", 3, 1, 100),
        ("batch_size", 1, 1, 64),
        ("learning_rate", 2e-5, 0, 1),
        ("warmup_ratio", 0.1, 0, 1),
        ("gradient_accumulation_steps", 8, 1, 128),
        ("max_seq_length", 2048, 8, 1_048_576),
        ("save_steps", 100, 1, None),
        ("checkpoint_limit", 1, 1, 20),
        ("lora_rank", 16, 1, 1024),
        ("lora_alpha", 32, 1, None),
        ("lora_dropout", 0.05, 0, 0.5),
        ("load_in_4bit", None, None, None),
        ("dpo_beta", 0.1, 0.01, 1),
        ("grpo_num_generations", 4, 2, 64),
        ("grpo_temperature", 0.7, 0.1, 2),
        ("grpo_ratio_clip_min", 0.2, 0, 1),
        ("prompts_per_rollout_batch", None, 1, 128),
        ("max_tool_calls_per_episode", 64, 1, 512),
        ("dppo_binary_tv_threshold", 0.15, 0, 1),
        ("dppo_binary_kl_threshold", 0.05, 0, None),
        ("echo_aux_lambda", 0.05, 0, None),
        ("rwml_distance_threshold", 0.2, 0, 2),
        ("rwml_history_window", 4, 0, 64),
        ("teacher_temperature", 0.7, 0.1, 10),
        ("distillation_alpha", 0.5, 0, 1),
        ("session_distillation_alpha", 0.7, 0, 1),
        ("session_distillation_temperature", 1.0, 0, 10),
        ("session_distillation_min_confidence", 0.6, 0, 1),
        ("seed", 42, 0, 2**32 - 1),
        ("eval_split", 0.0, 0, 0.5),
        ("sample_prompts", 2, 0, 32),
        ("num_processes", 1, 1, 64),
    ],
)
def test_defaults_and_bounds(name: str, default: object, minimum: float | None, maximum: float | None) -> None:
    field = registry.FIELDS[name]
    assert (field.default, field.minimum, field.maximum) == (default, minimum, maximum)


def test_no_foreign_alias_is_a_field_and_all_lead_to_fields() -> None:
    assert not set(FIELD_ALIASES) & set(registry.FIELDS)
    assert set(FIELD_ALIASES.values()) <= set(registry.FIELDS)


def test_profiles_set_only_fields_of_their_method() -> None:
    for method in registry.METHODS.values():
        for values in method.profiles.values():
            assert set(values) <= set(registry.fields_of(method))


def test_every_direct_method_is_complete() -> None:
    for name in registry.direct_names():
        method = registry.METHODS[name]
        assert method.dataset.required and method.dataset.example and method.must_emit, name
        assert method.recipe.ladder and method.recipe.rules and method.recipe.next and method.recipe.watch, name
        assert set(method.must_emit) <= {m.key for m in method.metrics}, name


def test_methods_that_are_not_direct_say_how_they_are_used() -> None:
    assert all(m.workflow for m in registry.METHODS.values() if not m.direct)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("sft", {EvidenceKind.METRICS, EvidenceKind.HELDOUT_BEHAVIOUR}),
        ("dpo", {EvidenceKind.PREFERENCE_PAIRS, EvidenceKind.HELDOUT_PREFERENCE, EvidenceKind.NO_REGRESSION}),
        (
            "grpo",
            {
                EvidenceKind.ENVIRONMENT_PASSK,
                EvidenceKind.HOLDOUT_GATE,
                EvidenceKind.CANARIES,
                EvidenceKind.ZERO_STD_DIAGNOSTICS,
                EvidenceKind.RELEASE_EVIDENCE,
            },
        ),
        ("rlvr", {EvidenceKind.CANARIES, EvidenceKind.ZERO_STD_DIAGNOSTICS}),
        ("distillation", {EvidenceKind.BASE_AND_TEACHER_COMPARISON}),
        ("session_distillation", {EvidenceKind.SESSION_RECORDS, EvidenceKind.MASKED_TOKEN_METRICS}),
        ("dppo", {EvidenceKind.REPLAY, EvidenceKind.REPLAY_ENRICHMENT, EvidenceKind.SMOKE_BUNDLE}),
        ("reward_model", {EvidenceKind.REWARD_EXAMPLES, EvidenceKind.REWARD_EVAL}),
        ("world_model", {EvidenceKind.CORRELATED_PASSK}),
        ("cascade", {EvidenceKind.STAGE_RUN_CARDS, EvidenceKind.STAGE_GATES}),
        ("embedding_retriever", {EvidenceKind.FROZEN_SPLIT, EvidenceKind.CONTAMINATION_CONTROL}),
    ],
)
def test_promotion_needs_the_evidence_of_the_matrix(name: str, kinds: set[EvidenceKind]) -> None:
    required = {r.kind for r in registry.METHODS[name].evidence if r.required_for_promotion and not r.terminal_only}
    assert kinds <= required


def test_world_model_metrics_are_diagnostics_only() -> None:
    assert {m.role for m in registry.METHODS["world_model"].metrics} == {Role.DIAGNOSTIC}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("train_loss", "loss"),
        ("eval_loss", "eval_loss"),
        ("rewardStd", "reward_std"),
        ("fracRewardZeroStd", "frac_reward_zero_std"),
        ("train_reward_mean", "reward"),
        ("heldout_pass@1", "pass_at_1"),
        ("rewards/accuracies", "preference_accuracy"),
        ("dpo_accuracy", "preference_accuracy"),
        ("chosen_reward_margin", "reward_margin"),
        ("rewards/margins", "reward_margin"),
        ("approx_kl", "kl"),
        ("timeoutRate", "timeout_rate"),
        ("rwml_embedding_distance_mean", "embedding_distance_mean"),
        ("command_count", "tool_calls"),
        ("gpu_memory_gb", "peak_memory_gb"),
        ("ooms", "oom_count"),
    ],
)
def test_metric_spellings(spelling: str, name: str) -> None:
    assert registry.metric_aliases()[spelling] == name


def test_a_metric_is_described_one_way_only_and_a_spelling_means_one_metric() -> None:
    described: dict[str, object] = {}
    owner: dict[str, str] = {}
    for method in registry.METHODS.values():
        for metric in method.metrics:
            assert described.setdefault(metric.name, metric) is metric, metric.name
            for spelling in (metric.name, metric.key, *metric.aliases):
                assert owner.setdefault(spelling, metric.name) == metric.name, spelling


def test_importing_the_registry_loads_nothing_heavy() -> None:
    code = (
        "import sys, bashgym.methods.registry, bashgym.methods.request;"
        "print([m for m in ('msgspec', 'pydantic', 'difflib', 'json', 'click', 'torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
