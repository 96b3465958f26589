"""Session Distillation on the tiny model: the loss against a reference in plain torch, and that the recovery is learnt."""

import json
from pathlib import Path

import pytest
import torch

from bashgym.core.errors import BashGymError
from bashgym.data.sessions.contract import confident
from bashgym.data.sessions.encode import encode_record
from bashgym.data.tokens import TokenizerBundle
from bashgym.evals.stats import cluster_bootstrap
from bashgym.runs.prepare import prepare
from bashgym.store.run_dir import RunDir
from bashgym.training.load import load_model
from bashgym.training.loop import Job
from bashgym.training.session_distillation import Collator, build, target_logits

from .conftest import TINY, wait_end

pytestmark = pytest.mark.train
TYPOS = {"python": "pyhton", "grep": "gerp", "cat": "cta", "sort": "srot"}


def record(i, confidence=0.78, target=None):
    """A misspelt program, its error, and the program spelt right on the same file."""
    program = [*TYPOS][i % 4]
    failed, mended = f"{TYPOS[program]} file{i}.txt", target or f"{program} file{i}.txt"
    context = f"Step 1, bash: {failed}\nOutput: {TYPOS[program]}: not found\n"
    hint = f"The command `{TYPOS[program]}` does not exist here; there is `{program}`."
    span = {"start": 0, "end": len(mended)}
    return {
        "record_id": f"{i:024x}",
        "trace_id": f"t{i}",
        "session_id": f"s{i}",
        "decision_id": f"d{i}",
        "step_index": 0,
        "original_context": f"{context}Next action:",
        "hinted_context": f"{context}[Session Distillation Hint] {hint}\nNext action:",
        "hint_text": hint,
        "target_text": mended,
        "target_type": "command",
        "target_span": span,
        "loss_mask": {"policy": "target_span_only", "target_span": span},
        "reader_model": "heuristic-session-distillation-reader-v1",
        "reader_confidence": confidence,
        "quality_score": 0.9,
        "verifier_outcome": "failed",
        "source_metadata": {"failed_action": failed},
    }


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def request(dataset_path, **changes):
    return {
        "strategy": "session_distillation",
        "base_model": TINY,
        "dataset_path": dataset_path,
        "batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "max_seq_length": 160,
        "lora_rank": 4,
        "lora_alpha": 8,
        "save_steps": 50,
        "sample_prompts": 0,
        "torch_threads": 1,
        **changes,
    }


@pytest.fixture
def make(workspace, tmp_path):
    """Builds a trainer in this process from request fields; rows of unequal lengths."""
    torch.set_num_threads(1)
    rows = [record(i, target=f"cat file{i}.txt{' | sort' * (i % 3)}") for i in range(8)]
    path = write(tmp_path / "rows.jsonl", rows)

    def made(**changes):
        prepared = prepare(request(path, **changes), workspace.settings)
        return build(Job(RunDir(tmp_path / "run"), prepared.request.as_dict(), prepared.manifest("run"))).trainer

    return made


def reference(model, rows, alpha, temperature):
    """The loss in plain torch: row by row, unpadded, probabilities written out; (loss, number of target tokens)."""
    total, count = 0.0, 0
    for row in rows:
        views = []
        for name in ("", "hinted_"):
            ids, labels = torch.tensor(row[f"{name}input_ids"]), row[f"{name}labels"]
            n = sum(label != -100 for label in labels)
            views.append(model(ids[None]).logits[0, len(ids) - n - 1 : -1])
        targets = torch.tensor([label for label in row["labels"] if label != -100])
        plain, hinted = views[0], views[1].detach()
        p, q = (hinted / temperature).softmax(-1), (plain / temperature).softmax(-1)
        kl = (p * (p.log() - q.log())).sum(-1)
        ce = -plain.softmax(-1)[range(len(targets)), targets].log()
        total = total + (alpha * temperature**2 * kl + (1 - alpha) * ce).sum()
        count += len(targets)
    return total / count, count


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("alpha", "temperature"), [(0.7, 2.0), (1.0, 0.5), (0.0, 1.0)])
def test_loss_and_gradient_are_those_of_the_reference_also_over_micro_batches(make, alpha, temperature):
    built = make(session_distillation_alpha=alpha, session_distillation_temperature=temperature)
    model, rows = built.model.eval(), [built.train_dataset[i] for i in range(8)]
    collate = Collator(0)
    assert len({len(r["input_ids"]) for r in rows}) > 1 and len({sum(x != -100 for x in r["labels"]) for r in rows}) > 1
    for name, parameter in model.named_parameters():  # LoRA's B is zero at first, and then nothing reaches A
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(1))
    expected, count = reference(model, rows, alpha, temperature)
    wanted = gradients(model, expected)
    whole = built.compute_loss(model, collate(rows))
    assert whole.item() == pytest.approx(expected.item(), abs=1e-5)
    parts = [built.compute_loss(model, collate(p), num_items_in_batch=count) for p in (rows[:1], rows[1:4], rows[4:])]
    assert sum(part.item() for part in parts) == pytest.approx(expected.item(), abs=1e-5)
    got = gradients(model, sum(parts))
    assert wanted and wanted.keys() == got.keys()
    assert max((wanted[name] - got[name]).abs().max().item() for name in wanted) < 1e-5


def test_each_branch_gives_the_logits_before_its_own_target_tokens(make):
    built = make()
    model, rows = built.model.eval(), [built.train_dataset[i] for i in range(3)]
    batch = Collator(0)(rows)
    for branch in ("", "hinted_"):
        logits, ids = target_logits(model, batch, branch)
        places = [(row, at) for row in rows for at, label in enumerate(row[f"{branch}labels"]) if label != -100]
        assert len(places) == len(ids) == len(logits)
        for n, (row, at) in enumerate(places):
            assert ids[n] == row[f"{branch}input_ids"][at]
            alone = model(torch.tensor([row[f"{branch}input_ids"][:at]])).logits[0, -1]
            assert torch.allclose(logits[n], alone, atol=1e-5)


def test_the_teacher_reads_without_dropout_and_leaves_the_mode_as_it_was(make):
    built = make(lora_dropout=0.5)
    batch = Collator(0)([built.train_dataset[0]])
    draws = []
    for training in (False, True):
        built.model.train(training)
        torch.manual_seed(3)
        built.compute_loss(built.model, batch)
        assert built.model.training is training
        draws.append(torch.get_rng_state())
    torch.manual_seed(3)
    assert torch.equal(draws[0], torch.get_rng_state())
    target_logits(built.model, batch, "")  # the one branch that may draw, in training mode
    assert torch.equal(draws[1], torch.get_rng_state())


def test_a_batch_that_trains_nothing_stops_the_run(make):
    built = make()
    batch = Collator(0)([built.train_dataset[0]])
    for name in ("labels", "hinted_labels"):
        batch[name] = torch.full_like(batch[name], -100)
    with pytest.raises(BashGymError) as caught:
        built.compute_loss(built.model, batch)
    assert caught.value.code == "row_not_encodable"


def test_branches_with_other_target_tokens_are_refused(make):
    built = make()
    batch = Collator(0)([built.train_dataset[0], built.train_dataset[1]])
    batch["hinted_labels"] = batch["hinted_labels"].flip(0)
    with pytest.raises(BashGymError):
        built.compute_loss(built.model, batch)


def probability(model, bundle, row, answer):
    """Of an answer after the context without the hint: the geometric mean over its tokens, from 0 to 1."""
    context, ids = (
        encode_record(bundle, row, max_length=400, wrap=True).original,
        [*bundle.encode(answer), bundle.eos_id],
    )
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *ids]])).logits[0, len(context) - 1 : -1].log_softmax(-1)
    return logits[range(len(ids)), torch.tensor(ids)].mean().exp().item()


def test_after_training_the_recovery_comes_more_readily_without_the_hint_on_unseen_sessions(workspace, tmp_path):
    train = write(tmp_path / "train.jsonl", [record(i) for i in range(64)])
    held_out = [*confident(Path(write(tmp_path / "held.jsonl", [record(i) for i in range(100, 124)])), 0.0)]
    body = request(train, use_lora=False, wrap_prompts=True, batch_size=8, max_steps=60, seed=7)
    run_id = workspace.runs.start(body)["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    base = Path(run.manifest()["model"]["path"])
    bundle = TokenizerBundle.load(base)
    torch.set_num_threads(1)
    gains, advantages = [], []  # both from -1 to 1
    models = [load_model(folder, dtype=torch.float32).eval() for folder in (base, run.file("final"))]
    for row in held_out:
        failed = row.original_context.partition("bash: ")[2].partition("\n")[0]
        recovery = [probability(model, bundle, row, row.target_text) for model in models]
        mistake = [probability(model, bundle, row, failed) for model in models]
        gains.append(recovery[1] - recovery[0])
        advantages.append((gains[-1] - (mistake[1] - mistake[0])) / 2)
    clusters = [row.session_id for row in held_out]
    assert cluster_bootstrap(gains, clusters).low > 0.02
    assert cluster_bootstrap(advantages, clusters).low > 0.01
    assert all(point["session_distillation_masked_tokens"] > 8 for point in run.metrics() if "loss" in point)


def test_a_run_with_an_adapter_checkpointing_and_an_eval_split_counts_what_preflight_counted(workspace, tmp_path):
    rows = [record(i, confidence=0.5 if i < 6 else 0.78) for i in range(30)]
    body = request(write(tmp_path / "rows.jsonl", rows), gradient_checkpointing=True, eval_split=0.25, eval_steps=2)
    run_id = workspace.runs.start({**body, "num_epochs": 1, "save_steps": 10, "gradient_accumulation_steps": 2})[
        "run_id"
    ]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    dataset = run.manifest()["dataset"]
    assert (dataset["rows"], dataset["train_rows"], dataset["eval_rows"]) == (24, 18, 6)
    assert "18 training rows, 6 evaluation rows" in run.file("training.log").read_text()
    points = run.metrics()
    assert any("eval_loss" in point for point in points)
    tokens = sum(point["session_distillation_masked_tokens"] for point in points if "loss" in point)
    dataset = build(Job(run, run.request(), run.manifest())).trainer.train_dataset
    assert tokens == sum(label != -100 for row in dataset for label in row["labels"])
