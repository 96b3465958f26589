"""The teacher is settled before anything is loaded: sizes, tokens, windows, hosted names, fields without effect."""

import json
import shutil

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.methods import distillation, registry
from bashgym.methods.request import parse_request
from bashgym.models import catalog
from bashgym.runs.teacher import check_sizes, resolve_teacher, teacher_bytes

TINY = "bashgym/tiny-qwen2"


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return Settings.from_env({"BASHGYM_DIR": str(home)}, home)


@pytest.fixture
def copy(settings, tmp_path):
    """A copy of the tiny model: copy(config changes) -> folder."""

    def made(tokenizer=None, **changes):
        folder = tmp_path / "teacher"
        shutil.copytree(catalog.ensure_tiny(settings), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        if tokenizer:
            path = folder / "tokenizer.json"
            path.write_text(json.dumps(tokenizer(json.loads(path.read_text()))))
        return folder

    return made


def parsed(**changes):
    return parse_request({"strategy": "distillation", "base_model": TINY, "dataset_path": "d.jsonl", **changes})


def settled(settings, **changes):
    return resolve_teacher(parsed(**changes).values, catalog.resolve(TINY, settings), settings)


def refusal(settings, **changes):
    with pytest.raises(BashGymError) as caught:
        settled(settings, **changes)
    return caught.value


def test_different_sizes_are_refused_with_both_numbers_and_a_way_out():
    with pytest.raises(BashGymError) as caught:
        check_sizes({"vocab_size": 151936, "model_type": "qwen2"}, {"vocab_size": 152064, "model_type": "qwen2"})
    error = caught.value
    assert error.code == "teacher_vocab_differs" and "151936" in error.message and "152064" in error.message
    assert "uld" in error.hint


def test_the_size_of_a_multimodal_config_is_that_of_its_text():
    check_sizes({"vocab_size": 7}, {"text_config": {"vocab_size": 7}})
    with pytest.raises(BashGymError):
        check_sizes({"vocab_size": 7}, {"vocab_size": 7, "text_config": {"vocab_size": 8}})


def test_sizes_are_compared_before_weights_are_needed(settings, copy):
    error = refusal(settings, teacher_model=str(copy(vocab_size=648)))
    assert error.code == "teacher_vocab_differs" and error.fields == ["teacher_model"]
    assert "640" in error.message and "648" in error.message


def swap(raw):
    vocabulary = raw["model"]["vocab"]
    a, b = sorted(vocabulary)[:2]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    return raw


def test_equal_sizes_with_other_tokens_are_refused_and_uld_takes_them(settings, copy):
    folder = copy(swap)
    error = refusal(settings, teacher_model=str(folder), max_seq_length=64)
    assert error.code == "teacher_vocab_differs" and "2 tokens differ" in error.message
    assert settled(settings, teacher_model=str(folder), distillation_alignment="uld").path == folder


def test_a_reformatted_tokenizer_file_is_the_same_vocabulary(settings, copy):
    assert settled(settings, teacher_model=str(copy(lambda raw: dict(reversed(raw.items())))))


def test_a_window_shorter_than_the_sequences_is_refused(settings, copy):
    error = refusal(settings, teacher_model=str(copy(max_position_embeddings=128)), max_seq_length=256)
    assert error.code == "invalid_field" and error.fields == ["max_seq_length"] and "128" in error.message


@pytest.mark.parametrize(
    "name", ["claude-sonnet-4-6", "gpt-4o", "openai/gpt-5", "anthropic:claude-opus-4", "o3-mini", "gemini-2.5-pro"]
)
def test_a_hosted_teacher_is_told_that_it_gives_no_logits(name, settings):
    error = refusal(settings, teacher_model=name)
    assert error.code == "teacher_without_logits" and error.fields == ["teacher_model"]
    assert "logits" in error.message and "Leave teacher_model out" in error.hint


@pytest.mark.parametrize("name", ["openai/gpt-oss-20b", "openai-community/gpt2", "no-such-run"])
def test_an_open_model_that_is_not_here_is_missing_not_hosted(name, settings, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    error = refusal(settings, teacher_model=name)
    assert error.code == "model_missing" and error.fields == ["teacher_model"]


def test_no_teacher_is_needed_without_one_or_for_another_strategy(settings):
    assert settled(settings) is None
    values = parse_request({"strategy": "sft", "base_model": TINY, "dataset_path": "d", "teacher_model": "x"}).values
    assert resolve_teacher(values, catalog.resolve(TINY, settings), settings) is None


def test_a_teacher_adds_its_weights_and_logits_to_memory(settings):
    teacher = catalog.resolve(TINY, settings)
    small, large = (parsed(batch_size=n, max_seq_length=64).values for n in (1, 2))
    one, two = (teacher_bytes(teacher, request, 4) for request in (small, large))
    assert one > teacher.n_parameters * 4 and two - one == 3 * 64 * 640 * 4


# -- the request ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"distillation_on_policy": True}, "distillation_on_policy"),
        (
            {"distillation_on_policy": True, "teacher_model": "t", "distillation_alignment": "uld"},
            "distillation_alignment",
        ),
        (
            {"distillation_on_policy": True, "teacher_model": "t", "max_seq_length": 64, "max_completion_length": 64},
            "max_completion_length",
        ),
        ({"teacher_model": "t", "distillation_alignment": "uld", "distillation_alpha": 0}, "distillation_alpha"),
    ],
)
def test_fields_that_cannot_go_together_are_refused(changes, field):
    with pytest.raises(BashGymError) as caught:
        parsed(**changes)
    assert caught.value.code == "invalid_field" and caught.value.fields == [field]


@pytest.mark.parametrize(
    ("changes", "unused"),
    [
        ({"teacher_temperature": 2.0, "distillation_alpha": 0.1}, {"teacher_temperature", "distillation_alpha"}),
        ({"distillation_divergence": "jsd", "distillation_alignment": "uld"}, None),
        ({"teacher_model": "t", "distillation_on_policy": True, "distillation_alpha": 0.1}, {"distillation_alpha"}),
        ({"teacher_model": "t", "max_completion_length": 9}, {"max_completion_length"}),
        (
            {"teacher_model": "t", "distillation_alignment": "uld", "distillation_divergence": "jsd"},
            {"distillation_divergence"},
        ),
        ({"teacher_model": "t", "distillation_alpha": 0.1, "distillation_divergence": "jsd"}, set()),
    ],
)
def test_fields_without_effect_are_named(changes, unused):
    warned = {warning["field"] for warning in parsed(**changes).warnings if warning["code"] == "field_not_used"}
    assert warned == (changes.keys() if unused is None else unused)


def test_only_a_run_without_teacher_is_sft_on_teacher_outputs():
    for teacher, objective in ((None, distillation.TEXT_ONLY), ("", distillation.TEXT_ONLY), ("t", "distillation")):
        request = parsed(teacher_model=teacher)
        assert distillation.objective(request.values) == objective
        assert (distillation.TEXT_ONLY in {w["code"] for w in request.warnings}) is (
            objective == distillation.TEXT_ONLY
        )
    assert distillation.objective({"strategy": "sft"}) == "sft"


def test_a_run_must_report_only_what_it_can():
    method, both = registry.get("distillation"), {"distillation_kl", "distillation_ce"}
    text, off = parsed().values, parsed(teacher_model="t").values
    on = parsed(teacher_model="t", distillation_on_policy=True).values
    missing = [both - set(registry.must_emit(method, request)) for request in (text, off, on)]
    assert missing == [{"distillation_kl"}, set(), {"distillation_ce"}]
    assert registry.must_emit(registry.get("sft"), {"strategy": "sft"}) == registry.get("sft").must_emit
