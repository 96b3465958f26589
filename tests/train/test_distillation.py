"""Distillation that trains for real: the loss against a plain reference, held-out learning, what each field changes."""

import json
import math

import pytest
import torch
from torch.nn.functional import cross_entropy, softmax
from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

from bashgym.core.canonical import digest_json
from bashgym.core.settings import Settings
from bashgym.data.alignment import align
from bashgym.data.distillation_checks import encoded_rows
from bashgym.data.tokens import TokenizerBundle
from bashgym.evals.stats import item_bootstrap
from bashgym.evidence.model_card import model_card
from bashgym.evidence.runcard import create
from bashgym.methods import registry
from bashgym.models.catalog import resolve
from bashgym.runs.analysis import analyze
from bashgym.runs.prepare import prepare
from bashgym.store.run_dir import RunDir
from bashgym.training.distillation import Collator, build
from bashgym.training.divergence import sorted_distance, token_divergence
from bashgym.training.load import load_model
from bashgym.training.loop import Job

from .conftest import TINY, wait_end
from .strategies import body

pytestmark = pytest.mark.train
DEFAULTS = {field.name: field.default for field in registry.fields_of(registry.get("distillation")).values()}
KINDS = ("forward_kl", "reverse_kl", "jsd")


def reference_divergence(q, p, kind):
    """Sums over the vocabulary as the papers write them; p teacher, q student, probabilities."""
    kl = lambda a, b: (a * (a / b).log()).sum(-1)  # noqa: E731
    if kind == "jsd":
        m = (p + q) / 2
        return kl(p, m) / 2 + kl(q, m) / 2
    return kl(p, q) if kind == "forward_kl" else kl(q, p)


def reference_loss(student, teacher, batches, request):
    """Loss of one optimizer step: every batch whole, float64, one division by all trained tokens."""
    alpha, t, total, count = request["distillation_alpha"], request["teacher_temperature"], 0.0, 0
    for batch in batches:
        labels = batch["labels"][:, 1:]
        on = labels != -100
        s, u = (
            m(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1][on].double()
            for m in (student, teacher)
        )
        d = reference_divergence(softmax(s / t, -1), softmax(u / t, -1), request["distillation_divergence"])
        total = total + alpha * cross_entropy(s, labels[on], reduction="sum") + (1 - alpha) * t**2 * d.sum()
        count += int(on.sum())
    return total / count


@pytest.fixture
def made(workspace, tmp_path, monkeypatch):
    """build(**changes) -> a trainer on the rows of `strategies`, in this process."""
    torch.set_num_threads(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def make(teacher=None, rows=None, **changes):
        path = tmp_path / "distillation.jsonl"
        request = body(
            "distillation",
            tmp_path,
            **{"lora_dropout": 0.0, **({"teacher_model": str(teacher)} if teacher else {}), **changes},
        )
        if rows is not None:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        prepared = prepare(request, workspace.settings)
        folder = tmp_path / f"run_{digest_json(request)[:8]}"
        folder.mkdir(exist_ok=True)
        set_seed(int(prepared.request["seed"]))
        return build(Job(RunDir(folder), prepared.request.as_dict(), prepared.manifest(folder.name))).trainer

    return make


@pytest.fixture
def other_teacher(workspace, tmp_path):
    """A model with the student's tokenizer and other weights."""
    folder = tmp_path / "teacher"
    base = resolve(TINY, workspace.settings).path
    model = load_model(base, dtype=torch.float32)
    torch.manual_seed(7)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * 0.05)
    return save_with_tokenizer(model, folder, base)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.7, 2.0])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_loss_is_the_formula_also_over_accumulated_batches_of_unequal_length(
    kind, temperature, alpha, made, other_teacher
):
    rows = [{"prompt": f"{i}?", "teacher_response": "yes " * (1 + 3 * i)} for i in range(4)]
    settings = {"distillation_divergence": kind, "teacher_temperature": temperature, "distillation_alpha": alpha}
    trainer = made(
        other_teacher, rows, batch_size=1, gradient_accumulation_steps=4, max_steps=1, warmup_ratio=0.0, **settings
    )
    batches = [trainer.data_collator([trainer.train_dataset[i]]) for i in range(4)]
    with torch.no_grad():
        expected = float(reference_loss(trainer.model.eval(), trainer.teacher, batches, settings))
    trainer.train()
    points = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert points[0]["loss"] == pytest.approx(expected, abs=1e-5, rel=1e-5)
    parts = alpha * points[0]["distillation_ce"] + (1 - alpha) * temperature**2 * points[0]["distillation_kl"]
    assert parts == pytest.approx(expected, abs=1e-5, rel=1e-5)


# -- learning ------------------------------------------------------------------------------------------------------------

KINDS_OF = {"lion": "animal", "wolf": "animal", "rose": "plant", "oak": "plant", "iron": "metal", "gold": "metal"}
ASKED = ("What is {}?", "Name the kind of {}.", "{} is a", "Tell me about {}:", "kind of {}", "Sort {} please")
LESSONS = [
    {"prompt": asked.format(thing), "teacher_response": f"a kind of {kind}"}
    for asked in ASKED
    for thing, kind in KINDS_OF.items()
]
HELD = [row for at, row in enumerate(LESSONS) if at % 4 == 3]
TAUGHT = [row for at, row in enumerate(LESSONS) if at % 4 != 3]


def encodings(folder, rows, tmp_path):
    path = tmp_path / "encodings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = {**DEFAULTS, "max_seq_length": 64, "dataset_path": str(path)}
    return list(encoded_rows(TokenizerBundle.load(folder), path, request))


def taught(model, folder, tmp_path, steps=120):
    """`model` after a little plain SFT on all lessons."""
    rows = [encoded for _, encoded in encodings(folder, LESSONS, tmp_path)]
    optimizer, draw = torch.optim.AdamW(model.parameters(), lr=2e-3), torch.Generator().manual_seed(1)
    collate = Collator(0)
    for _ in range(steps):
        at = torch.randint(len(rows), (8,), generator=draw).tolist()
        batch = collate([{"input_ids": rows[i].input_ids, "labels": rows[i].labels} for i in at])
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def save_with_tokenizer(model, folder, source):
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).is_file():
            (folder / name).write_bytes((source / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A tiny model that knows the lessons, and has the student's tokenizer."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("taught")
    base = resolve(TINY, Settings.from_env({"BASHGYM_DIR": str(folder / "home")}, folder)).path
    torch.manual_seed(3)
    model = taught(load_model(base, dtype=torch.float32), base, folder)
    return save_with_tokenizer(model, folder / "teacher", base)


@torch.no_grad()
def answers(model, folder, rows, tmp_path):
    """Logits [N, V] at the trained tokens of each row."""
    found = []
    for _, encoded in encodings(folder, rows, tmp_path):
        ids, labels = torch.tensor([encoded.input_ids]), torch.tensor([encoded.labels])[:, 1:]
        found.append(model.eval()(ids).logits[:, :-1][labels != -100])
    return found


def lower_bound(before, after):
    """Of the 95 % interval of the mean fall per held-out row."""
    differences = [float(b - a) for b, a in zip(before, after, strict=True)]
    interval = item_bootstrap(differences, ["held out"] * len(differences), n_resamples=2000)
    print(interval)
    return interval.low


def test_a_student_comes_closer_to_its_teacher_on_prompts_that_it_was_not_trained_on(made, teacher, tmp_path):
    trainer = made(
        teacher, TAUGHT, use_lora=False, learning_rate=2e-3, max_steps=80, batch_size=8, distillation_alpha=0.2,
        teacher_temperature=1.0, eval_split=0.2, eval_steps=40,
    )  # fmt: skip
    weights = {name: value.clone() for name, value in trainer.teacher.state_dict().items()}
    folder = resolve(TINY, Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)).path
    goal = answers(trainer.teacher, teacher, HELD, tmp_path)

    def measured():
        student = answers(trainer.model, folder, HELD, tmp_path)
        kl = [token_divergence(s, t, "forward_kl", 1.0).mean() for s, t in zip(student, goal, strict=True)]
        return kl, [(s.argmax(-1) == t.argmax(-1)).float().mean() for s, t in zip(student, goal, strict=True)]

    kl_before, agreed_before = measured()
    trainer.train()
    kl_after, agreed_after = measured()
    assert lower_bound(kl_before, kl_after) > 0.5
    assert lower_bound(agreed_after, agreed_before) > 0.2
    assert all(torch.equal(value, weights[name]) for name, value in trainer.teacher.state_dict().items())
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 2 and evaluations[-1]["eval_distillation_kl"] < evaluations[0]["eval_distillation_kl"]
    for entry in evaluations:
        parts = 0.2 * entry["eval_distillation_ce"] + 0.8 * entry["eval_distillation_kl"]
        assert entry["eval_loss"] == pytest.approx(parts, rel=0.05)


def test_a_student_that_is_its_own_teacher_has_no_divergence_and_does_not_move_by_it(made):
    trainer = made(use_lora=False, distillation_alpha=0.0, max_steps=2, optim="sgd")
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    first = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert abs(first["distillation_kl"]) < 1e-6 and abs(first["loss"]) < 1e-6 and first["distillation_ce"] > 1
    assert all(torch.allclose(value, before[name], atol=1e-6) for name, value in trainer.model.state_dict().items())


def test_on_policy_the_student_learns_from_its_own_answers(made, teacher, tmp_path):
    trainer = made(
        teacher, TAUGHT, use_lora=False, learning_rate=2e-3, max_steps=40, batch_size=8, teacher_temperature=1.0,
        distillation_on_policy=True, max_completion_length=6, distillation_divergence="reverse_kl",
    )  # fmt: skip
    folder = resolve(TINY, Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)).path
    goal = answers(trainer.teacher, teacher, HELD, tmp_path)

    def first_token():
        student = answers(trainer.model, folder, HELD, tmp_path)
        return [token_divergence(s[0], t[0], "reverse_kl", 1.0) for s, t in zip(student, goal, strict=True)]

    before = first_token()
    trainer.train()
    assert lower_bound(before, first_token()) > 0.5
    points = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all("distillation_ce" not in point for point in points)
    assert points[0]["loss"] == pytest.approx(points[0]["distillation_kl"], rel=1e-5)


def test_sampled_answers_follow_from_seed_and_step_alone_and_leave_the_random_state(made, teacher):
    trainer = made(teacher, TAUGHT, distillation_on_policy=True, max_completion_length=5)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    state = torch.get_rng_state()
    one, again, other = (trainer._sampled(batch, key) for key in ("a", "a", "b"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one["input_ids"], again["input_ids"])
    assert not torch.equal(one["input_ids"], other["input_ids"])
    for at in range(4):
        prompt, answer = trainer.train_dataset[at]["input_ids"], one["labels"][at][one["labels"][at] != -100]
        assert one["input_ids"][at][: len(prompt)].tolist() == prompt
        assert one["input_ids"][at][len(prompt) : len(prompt) + len(answer)].tolist() == answer.tolist()
        assert 1 <= len(answer) <= 5
        stops = [i for i, token in enumerate(answer.tolist()) if token in trainer.objective.stop_ids]
        assert stops in ([], [len(answer) - 1])


# -- across tokenizers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign_teacher(tmp_path_factory):
    """A model with another tokenizer (words, not bytes), that knows the lessons."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("foreign")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([row["prompt"] + row["teacher_response"] for row in LESSONS], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "</s>", "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(5)
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=tokenizer.get_vocab_size(), num_key_value_heads=2, max_position_embeddings=256, **shape)
    )
    model.save_pretrained(folder)
    taught(model, folder, folder).save_pretrained(folder)
    return folder


def test_uld_brings_a_student_closer_to_a_teacher_with_another_tokenizer(made, foreign_teacher, tmp_path):
    trainer = made(
        foreign_teacher, TAUGHT, use_lora=False, learning_rate=2e-3, max_steps=60, batch_size=8, distillation_alpha=0.1,
        teacher_temperature=1.0, distillation_alignment="uld",
    )  # fmt: skip
    student = TokenizerBundle.load(
        resolve(TINY, Settings.from_env({"BASHGYM_DIR": str(tmp_path / "h")}, tmp_path)).path
    )
    theirs = TokenizerBundle.load(foreign_teacher)
    held = [{"input_ids": e.input_ids, "labels": e.labels} | align(student, theirs, x, e, 64)
            for x, e in encodings(student.folder, HELD, tmp_path)]  # fmt: skip

    @torch.no_grad()
    def measured():
        trainer.model.eval()
        batches = [trainer.data_collator([row]) for row in held]
        found = []
        for b in batches:
            ours = trainer.model(b["input_ids"]).logits[b["aligned"] == 1]
            other = trainer.teacher(b["teacher_input_ids"]).logits[b["teacher_aligned"] == 1]
            assert len(ours) == len(other) > 0
            found.append(sorted_distance(ours, other, 1.0).mean())
        return found

    before = measured()
    trainer.train()
    assert lower_bound(before, measured()) > 0.2


def test_sorted_distance_is_what_trl_computes_where_both_tokenizers_agree():
    from types import SimpleNamespace

    from trl.experimental.gold.gold_trainer import ULDLoss

    torch.manual_seed(0)
    ours, theirs = torch.randn(1, 6, 11), torch.randn(1, 6, 7)
    settings = {"uld_crossentropy_weight": 0.0, "uld_distillation_weight": 1.0, "use_extended_uld": False}
    settings |= {"uld_student_temperature": 2.0, "uld_teacher_temperature": 2.0}
    settings |= {"uld_skip_student_eos": False, "uld_skip_teacher_eos": False, "uld_token_merge_strategy": "bayesian"}
    labels = torch.tensor([[-100, -100, 1, 2, 3, 4]])
    loss = ULDLoss(SimpleNamespace(**settings))(ours, theirs, labels, labels, labels, labels)
    assert sorted_distance(ours[0, 1:5], theirs[0, 1:5], 2.0).mean() == pytest.approx(float(loss), abs=1e-6)


# -- numbers at the edges ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_saturated_and_impossible_tokens_give_finite_divergence_and_gradient(kind):
    far = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, -math.inf, 1.0]], requires_grad=True)
    near = torch.tensor([[-1e4, 1e4, 0.0], [-1e4, 1e4, 0.0], [-math.inf, 0.0, 1.0]])
    found = token_divergence(far, near, kind, 0.1)
    found.sum().backward()
    assert torch.isfinite(found).all() and torch.isfinite(far.grad).all() and (found >= 0).all()
    assert found[1] == 0
    assert torch.isnan(token_divergence(torch.tensor([[math.nan, 0.0]]), torch.zeros(1, 2), kind, 1.0)).all()


def test_the_divergence_is_the_same_from_bfloat16_logits_as_from_their_float32_values():
    ours, theirs = torch.randn(4, 9).bfloat16(), torch.randn(4, 9).bfloat16()
    for kind in KINDS:
        one, two = token_divergence(ours, theirs, kind, 2.0), token_divergence(ours.float(), theirs.float(), kind, 2.0)
        assert one.dtype == torch.float32 and torch.equal(one, two)


# -- whole runs ----------------------------------------------------------------------------------------------------------


def test_a_run_without_a_teacher_says_everywhere_that_it_is_sft_on_teacher_outputs(workspace, tmp_path):
    runs, label = workspace.runs, "sft_on_teacher_outputs"
    request = body("distillation", tmp_path, max_steps=2, distillation_alpha=0.3)
    del request["teacher_model"]
    started = runs.start(request)
    warned = {warning["code"]: warning for warning in started["warnings"]}
    assert label in warned and warned["field_not_used"]["field"] == "distillation_alpha"
    run_id = started["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = runs.locate(run_id)
    names = {name for point in run.metrics() for name in point}
    assert "distillation_ce" in names and "distillation_kl" not in names
    assert run.manifest()["objective"] == label and run.manifest()["teacher"] is None
    assert json.loads(run.file("model_profile.json").read_text())["objective"] == label
    assert runs.classification(run_id)["objective"] == label
    analysis = analyze(run_dir=run.path)
    assert analysis["objective"] == label
    codes = {finding["code"] for finding in analysis["findings"]}
    assert label in codes and "missing_method_metrics" not in codes
    card = tmp_path / "card.json"
    create(
        run_id=run_id, training_method="distillation", base_model=TINY, compute_target="local", output=card,
        models_dir=workspace.settings.models_dir,
    )  # fmt: skip
    assert label in " ".join(json.loads(card.read_text())["known_limitations"])
    assert label in model_card(run.path)


def test_an_adapter_of_an_earlier_run_can_teach_and_is_recorded(workspace, tmp_path):
    runs = workspace.runs
    first = runs.start(body("distillation", tmp_path, max_steps=2))["run_id"]
    assert wait_end(workspace, first)["status"] == "completed"
    second = runs.start(body("distillation", tmp_path, teacher_model=first, max_steps=2))["run_id"]
    ended = wait_end(workspace, second)
    assert ended["status"] == "completed", ended
    manifest = runs.locate(second).manifest()
    assert manifest["objective"] == "distillation" and manifest["teacher"]["name"] == first
    assert manifest["teacher"]["adapter_path"] and manifest["teacher"]["digest"] != manifest["model"]["digest"]
    kl = [point["distillation_kl"] for point in runs.locate(second).metrics() if "distillation_kl" in point]
    assert kl[0] > 0
    saved = {path.name for path in runs.locate(second).file("final").iterdir()}
    assert not any("teacher" in name for name in saved)


def test_a_field_that_wraps_prompts_changes_the_tokens_that_are_trained(made):
    plain, wrapped = (made(wrap_prompts=wrap).train_dataset[0]["input_ids"] for wrap in (False, True))
    assert plain != wrapped and len(wrapped) > len(plain)


@pytest.mark.parametrize("on_policy", [False, True])
def test_a_trainer_that_continues_from_a_checkpoint_ends_in_the_same_bits(on_policy, made, teacher):
    def make(**changes):
        return made(
            teacher,
            TAUGHT,
            lora_dropout=0.1,
            max_steps=4,
            save_steps=2,
            distillation_on_policy=on_policy,
            max_completion_length=5,
            **changes,
        )

    straight = make()
    straight.train()
    again = make()
    again.train(resume_from_checkpoint=f"{again.args.output_dir}/checkpoint-2")
    weights = dict(straight.model.named_parameters())
    assert all(torch.equal(value, weights[name]) for name, value in again.model.named_parameters())
    assert any("teacher" in name for name in vars(again)) and not any("teacher" in name for name in weights)
