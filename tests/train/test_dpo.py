"""DPO on the tiny model: TRL's ids, the loss in plain torch, the reference, and that held-out preferences are learnt."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import logsigmoid

from bashgym.core.errors import BashGymError
from bashgym.data.pairs import encode_pairs
from bashgym.data.prompts import iter_prompt_rows
from bashgym.data.tokens import TokenizerBundle
from bashgym.evals.stats import cluster_bootstrap
from bashgym.runs.prepare import prepare
from bashgym.store.run_dir import RunDir
from bashgym.training.dpo import COLUMNS, build
from bashgym.training.load import load_model, load_tokenizer
from bashgym.training.loop import Job

from .conftest import TINY, wait_end, wait_step

pytestmark = pytest.mark.train
COUPLES = [("open", "close", "gate", "wall"), ("start", "stop", "go", "halt"), ("push", "pull", "out", "in")]
COUPLES += [("pack", "unpack", "cf", "xf"), ("show", "hide", "cat", "rm"), ("lock", "free", "600", "644")]
TOOLS = [{"type": "function", "function": {"name": "reader_of_files", "parameters": {"type": "object"}}}]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pairs(names):
    """Two prompts a couple, of which each prefers what the other rejects: no answer is the better one by itself."""
    for name in names:
        for left, right, first, second in COUPLES:
            yield {"prompt": f"{left} {name}", "chosen": f"{first} {name}", "rejected": f"{second} {name}"}
            yield {"prompt": f"{right} {name}", "chosen": f"{second} {name}", "rejected": f"{first} {name}"}


def request(path, **changes):
    return {
        "strategy": "dpo",
        "base_model": TINY,
        "dataset_path": path,
        "batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "max_seq_length": 64,
        "lora_rank": 4,
        "lora_alpha": 8,
        "save_steps": 50,
        "sample_prompts": 0,
        "torch_threads": 1,
        "wrap_prompts": True,
        **changes,
    }


@pytest.fixture
def make(workspace, tmp_path):
    """Builds a trainer in this process from request fields; rows of unequal lengths."""
    torch.set_num_threads(1)
    rows = list(pairs(["a1", "a rather long name b2"]))[9:15]
    rows[0]["chosen"] += " and so on"
    path = write(tmp_path / "rows.jsonl", rows)

    def made(**changes):
        torch.manual_seed(0)
        prepared = prepare(request(path, **changes), workspace.settings)
        return build(Job(RunDir(tmp_path / "run"), prepared.request.as_dict(), prepared.manifest("run"))).trainer

    return made


@pytest.fixture
def adapter(workspace, tmp_path):
    """A folder with an adapter of the tiny model that changes what it says, and has dropout."""
    torch.manual_seed(5)
    base = workspace.model(TINY).path
    config = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.3, init_lora_weights=False)
    model = get_peft_model(load_model(base, dtype=torch.float32), config)
    model.peft_config["default"].base_model_name_or_path = TINY
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def log_prob(model, row, side):
    """Sum over the answer's tokens of log p(token | all before it), in plain torch, without padding."""
    ids = torch.tensor([*row["prompt_ids"], *row[side]])
    scores = model(ids[None]).logits[0, :-1].float().softmax(-1).log()
    return scores.gather(1, ids[1:, None])[len(row["prompt_ids"]) - 1 :].sum()


def reference_loss(policy, reference, rows, beta):
    """-log sigmoid(beta ((pc - rc) - (pr - rr))), averaged over pairs (Rafailov et al. 2023, equation 7)."""
    total = 0.0
    for row in rows:
        with torch.no_grad():
            rc, rr = log_prob(reference, row, "chosen_ids"), log_prob(reference, row, "rejected_ids")
        pc, pr = log_prob(policy, row, "chosen_ids"), log_prob(policy, row, "rejected_ids")
        total = total - logsigmoid(beta * ((pc - rc) - (pr - rr)))
    return total / len(rows)


def rows_of(trainer):
    return [trainer.train_dataset[i] for i in range(len(trainer.train_dataset))]


def moved(model, seed=1):
    """The model after a random step of everything that is trained."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter += 0.05 * torch.randn(parameter.shape, generator=draw)
    return model


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("use_lora", "beta"), [(True, 0.1), (True, 0.7), (False, 0.1)])
def test_loss_and_gradient_are_those_of_the_reference(make, workspace, use_lora, beta):
    trainer = make(use_lora=use_lora, dpo_beta=beta)
    base, rows = load_model(workspace.model(TINY).path, dtype=torch.float32).eval(), rows_of(trainer)
    assert len({len(row["prompt_ids"]) for row in rows}) > 1 and len({len(row["chosen_ids"]) for row in rows}) > 1
    policy = moved(trainer.model).eval()
    expected = reference_loss(policy, base, rows, beta)
    wanted = gradients(policy, expected)
    loss = trainer.compute_loss(policy, trainer.data_collator(rows))
    assert abs(loss.item() - 0.6931) > 1e-3
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    got = gradients(policy, loss)
    assert got.keys() == wanted.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-5, rtol=1e-3)


def test_the_reference_of_a_continued_adapter_is_that_adapter(make, adapter, workspace):
    trainer = make(base_model=str(adapter))
    base = load_model(workspace.model(TINY).path, dtype=torch.float32)
    start, rows = PeftModel.from_pretrained(base, adapter).eval(), rows_of(trainer)
    policy = moved(trainer.model).eval()
    loss = trainer.compute_loss(policy, trainer.data_collator(rows))
    assert loss.item() == pytest.approx(reference_loss(policy, start, rows, 0.1).item(), abs=1e-5)
    with start.disable_adapter():
        assert abs(loss.item() - reference_loss(policy, start, rows, 0.1).item()) > 1e-3


@pytest.mark.parametrize("start", ["base", "base_full", "adapter", "adapter_full"])
def test_policy_and_reference_are_the_same_model_at_the_start(make, adapter, start):
    model = str(adapter) if start.startswith("adapter") else TINY
    trainer = make(base_model=model, use_lora="full" not in start)
    trainer.model.eval()
    loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows_of(trainer)))
    assert loss.item() == pytest.approx(0.693147, abs=1e-5)
    (margin,) = trainer._metrics["eval"]["rewards/margins"]
    assert abs(margin) < 1e-4
    trained = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert trained and not any(".ref." in name for name in trained)
    assert all("lora_" in name for name in trained) == ("full" not in start)


def test_dropout_moves_the_policy_and_never_the_reference(make, adapter):
    trainer = make(base_model=str(adapter))
    batch = trainer.data_collator(rows_of(trainer))
    trainer.model.train()
    first, second = (torch.cat(trainer.compute_ref_log_probs(trainer.model, batch)) for _ in range(2))
    assert torch.equal(first, second)
    losses = {trainer.compute_loss(trainer.model, batch).item() for _ in range(2)}
    assert len(losses) == 2


def test_the_dropout_of_a_new_adapter_is_the_requested_one(make):
    for wanted in (0.0, 0.4):
        trainer = make(lora_dropout=wanted)
        batch = trainer.data_collator(rows_of(trainer))
        moved(trainer.model).train()
        losses = {trainer.compute_loss(trainer.model, batch).item() for _ in range(2)}
        assert len(losses) == (2 if wanted else 1)


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"prompt": "What is 7 x 8?\n", "chosen": "56.", "rejected": "54"},
            {"prompt": "ab", "chosen": "c", "rejected": "d"},
        ],
        [
            {
                "chosen": [*turns, {"role": "assistant", "content": "ls -A"}],
                "rejected": [*turns, {"role": "assistant", "content": "rm -rf /"}, {"role": "user", "content": "no!"}],
            }
            for turns in (
                [{"role": "user", "content": "list"}],
                [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "\n list  ü 🙂 "}],
            )
        ],
        [
            {
                "prompt": [{"role": "user", "content": "read a.py"}],
                "chosen": [{"role": "assistant", "content": "done"}],
                "rejected": [{"role": "assistant", "content": "no"}],
                "tools": TOOLS,
            }
        ],
    ],
    ids=["plain", "implicit", "tools"],
)
def test_ids_are_those_that_trl_prepares_by_itself(workspace, tmp_path, rows):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    folder = workspace.model(TINY).path
    model = load_model(folder, dtype=torch.float32)
    config = DPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, bf16=False, precompute_ref_log_probs=False)
    given = Dataset.from_list([{**row, "tools": json.dumps(row["tools"])} if "tools" in row else row for row in rows])
    ref_model = load_model(folder, dtype=torch.float32)
    tokenizer = load_tokenizer(folder)
    theirs = DPOTrainer(model, ref_model, config, train_dataset=given, processing_class=tokenizer).train_dataset
    ours = encoded(folder, write(tmp_path / "rows.jsonl", rows), wrap=False, max_length=512)
    assert [[row[name] for name in COLUMNS] for row in theirs] == [[row[name] for name in COLUMNS] for row in ours]


def encoded(folder, path, wrap=True, max_length=64):
    read = iter_prompt_rows(Path(path), "dpo", wrap=wrap)
    bundle = TokenizerBundle.load(Path(folder))
    made = (pair for _, pair in encode_pairs(bundle, read, max_length=max_length))
    return [{name: getattr(pair, name) for name in COLUMNS} for pair in made]


def test_what_is_trained_is_what_was_counted_also_when_cut_and_split(make, workspace):
    whole = make()
    ids = {name: whole.train_dataset[name] for name in COLUMNS}
    lengths = [sum(map(len, parts)) for parts in zip(ids["prompt_ids"], ids["chosen_ids"], strict=True)]
    cut = make(max_seq_length=max(lengths) - 3)
    assert list(cut.train_dataset["chosen_ids"]) == list(ids["chosen_ids"])
    batch = cut.data_collator(rows_of(cut))
    assert batch["input_ids"].shape[1] == max(lengths) - 3
    split = make(eval_split=0.34)
    assert (len(split.train_dataset), len(split.eval_dataset)) == (4, 2)
    assert sorted([*split.train_dataset["prompt_ids"], *split.eval_dataset["prompt_ids"]]) == sorted(ids["prompt_ids"])


def test_an_argument_that_the_run_decides_is_refused(workspace, tmp_path):
    body = request(write(tmp_path / "rows.jsonl", pairs(["a"])), trainer_args={"sync_ref_model": True})
    with pytest.raises(BashGymError, match="sync_ref_model"):
        workspace.runs.check(body)


def test_gradient_checkpointing_changes_nothing_but_memory(make):
    losses = []
    for on in (False, True):
        trainer = make(gradient_checkpointing=on, lora_dropout=0)
        assert trainer.args.gradient_checkpointing is on
        moved(trainer.model).train()
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows_of(trainer)))
        losses.append((loss.item(), gradients(trainer.model, loss)))
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-6)
    for name, gradient in losses[0][1].items():
        torch.testing.assert_close(gradient, losses[1][1][name])


@pytest.mark.slow
def test_a_continued_adapter_keeps_its_reference_over_a_pause_and_leaves_no_copy(workspace, tmp_path, adapter):
    path = write(tmp_path / "rows.jsonl", pairs([f"n{i}" for i in range(4)]))
    body = request(path, base_model=str(adapter), max_steps=16, save_steps=4, sample_prompts=1)
    straight = workspace.runs.start(body)["run_id"]
    assert wait_end(workspace, straight)["status"] == "completed"
    first = workspace.runs.start(body)["run_id"]
    wait_step(workspace, first, 3)
    workspace.runs.pause(first)
    assert wait_end(workspace, first)["status"] == "paused"
    workspace.runs.resume(first)
    assert wait_end(workspace, first)["status"] == "completed"
    a, b = (workspace.runs.locate(run_id) for run_id in (straight, first))
    name = "adapter_model.safetensors"
    assert (
        a.file(
            "final",
        )
        .joinpath(name)
        .read_bytes()
        == b.file("final").joinpath(name).read_bytes()
    )
    assert not (a.file("final") / "ref").exists()
    names = (
        "rewards/chosen",
        "rewards/rejected",
        "rewards/accuracies",
        "rewards/margins",
        "logps/chosen",
        "logps/rejected",
    )
    assert {*names, "loss"} <= a.metrics()[0].keys()


@pytest.mark.slow
def test_held_out_preferences_are_learnt(workspace, tmp_path):
    path = write(tmp_path / "rows.jsonl", pairs([f"x{i}" for i in range(12)]))
    run_id = workspace.runs.start(request(path, batch_size=16, num_epochs=5, learning_rate=1e-2))["run_id"]
    final = wait_end(workspace, run_id)
    assert final["status"] == "completed", final
    folder = workspace.model(TINY).path
    torch.set_num_threads(1)
    base = load_model(folder, dtype=torch.float32).eval()
    tuned = PeftModel.from_pretrained(
        load_model(folder, dtype=torch.float32), workspace.runs.locate(run_id).file("final")
    ).eval()
    held = encoded(folder, write(tmp_path / "held.jsonl", pairs([f"y{i}" for i in range(4)])))

    @torch.no_grad()
    def right(model):
        return [float(log_prob(model, row, "chosen_ids") > log_prob(model, row, "rejected_ids")) for row in held]

    before, after = right(base), right(tuned)
    gains = [b - a for a, b in zip(before, after, strict=True)]
    couples = [i % (2 * len(COUPLES)) // 2 for i in range(len(gains))]
    interval = cluster_bootstrap(gains, couples)
    assert interval.low > 0, (before, after, interval)
