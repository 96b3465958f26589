"""Reward models: their losses against a few lines of plain torch, and that they learn, load, score and are judged."""

import json
import math

import pytest

from bashgym.core.errors import BashGymError
from bashgym.evals.reward_eval import evaluate
from bashgym.evals.reward_scoring import score_file

from .conftest import TINY, wait_end
from .strategies import body, judged
from .test_method_fields import Made

pytestmark = pytest.mark.train


def written(tmp_path, rows, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made_of(workspace, tmp_path, kind, **fields):
    path = written(tmp_path, [judged(kind, i) for i in range(12)])
    return Made(workspace, body("reward_model", tmp_path, dataset_path=str(path), lora_dropout=0.0, **fields))


def plain_scores(model, ids):
    """The head on the last hidden states [T] of one sequence, without padding."""
    import torch

    bare = model.get_base_model()
    with torch.no_grad():
        hidden = bare.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        return bare.score(hidden)[:, 0].tolist()


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


@pytest.mark.parametrize("centre", [0.0, 0.01])
def test_the_loss_of_pairs_is_the_formula(workspace, tmp_path, centre):
    trainer = made_of(workspace, tmp_path, "preference", reward_center_coefficient=centre).trainer
    rows = [trainer.train_dataset[i] for i in range(4)]
    loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows)).item()
    scores = [[plain_scores(trainer.model, row[name])[-1] for name in ("chosen_ids", "rejected_ids")] for row in rows]
    expected = [-log_sigmoid(a - b) + centre * (a + b) ** 2 for a, b in scores]
    assert loss == pytest.approx(sum(expected) / 4, abs=1e-5)
    assert len({round(a, 4) for a, _ in scores}) > 1


@pytest.mark.parametrize("kind", ["outcome", "process"])
@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_loss_of_rewards_is_the_formula(workspace, tmp_path, kind, loss):
    trainer = made_of(workspace, tmp_path, kind, reward_loss=loss).trainer
    rows = [trainer.train_dataset[i] for i in range(4)]
    found = trainer.compute_loss(trainer.model, trainer.data_collator(rows)).item()
    expected = []
    for row in rows:
        scores = plain_scores(trainer.model, row["input_ids"])
        parts = []
        for at, r in zip(row["ends"], row["targets"], strict=True):
            s = scores[at]
            parts.append((s - r) ** 2 if loss == "mse" else -r * log_sigmoid(s) - (1 - r) * log_sigmoid(-s))
        expected.append(sum(parts) / len(parts))
    assert found == pytest.approx(sum(expected) / 4, abs=1e-5)
    assert {len(row["ends"]) for row in rows} == ({1} if kind == "outcome" else {2, 3})


def trained(workspace, tmp_path, kind, **fields):
    """(run id, predictions) of a run on 48 rows, asked about 24 rows of another split in the same file."""
    rows = [judged(kind, i) for i in range(48)] + [judged(kind, i, "eval") for i in range(24)]
    path = written(tmp_path, rows)
    how = {"dataset_path": str(path), "batch_size": 8, "learning_rate": 5e-3, "max_steps": 40, "save_steps": 40}
    run_id = workspace.runs.start(body("reward_model", tmp_path, **how, **fields))["run_id"]
    final = wait_end(workspace, run_id)
    assert final["status"] == "completed", final
    report = score_file(run_id, path, tmp_path / "scored.jsonl", workspace.settings, split="eval")
    assert report["scored"] == 24 and report["rows"] == 72
    return run_id, tmp_path / "scored.jsonl"


def loaded_as_its_card_says(run, base, row):
    """The score of a pair's chosen answer, from the lines of the model card alone."""
    import torch

    from bashgym.evidence.model_card import model_card

    code = model_card(run.path).split("```python")[1].split("```")[0]
    made = {}
    exec(code.replace("FOLDER", str(run.file("final"))).replace(TINY, str(base)), made)
    text = row["prompt"] + row["chosen"] + made["tokenizer"].eos_token
    with torch.no_grad():
        return made["model"].eval()(**made["tokenizer"](text, return_tensors="pt")).logits.item()


@pytest.mark.parametrize("lora", [True, False])
def test_it_learns_a_preference_that_holds_on_unseen_pairs(workspace, tmp_path, lora):
    fields = {} if lora else {"use_lora": False}
    run_id, scored = trained(workspace, tmp_path, "preference", sample_prompts=1, **fields)
    report = evaluate(scored, run_id=run_id)
    assert report["ok"], report["findings"]
    assert report["metrics"]["pair_count"] == 24 and report["metrics"]["pair_accuracy_interval"][0] > 0.5
    run = workspace.runs.locate(run_id)
    sample = json.loads(run.file("samples.jsonl").read_text().splitlines()[-2])
    assert sample["expected"] == "chosen" and isinstance(sample["reward"], float)
    last = [point for point in run.metrics() if "reward_accuracy" in point][-1]
    assert last["reward_accuracy"] > 0.5 and last["reward_model_margin"] > 0
    first = json.loads(scored.read_text().splitlines()[48])
    assert loaded_as_its_card_says(run, workspace.model(TINY).path, first) == pytest.approx(
        first["predicted_chosen"], abs=1e-4
    )
    for refused in (
        lambda: workspace.evals.check("terminal", run_id, None, split="heldout_values", seed=0, per_family=1, limit=2,
                                      attempts=1, temperature=0.0, top_p=1.0, max_new_tokens=8, run_id=None),
        lambda: workspace.runs.check(body("dpo", tmp_path, base_model=run_id)),
    ):  # fmt: skip
        with pytest.raises(BashGymError) as caught:
            refused()
        assert caught.value.code == "unsupported_model" and "reward model" in caught.value.message


def test_outcomes_become_probabilities_and_a_run_goes_on_from_a_reward_model(workspace, tmp_path):
    run_id, scored = trained(workspace, tmp_path, "outcome")
    rows = [json.loads(line) for line in scored.read_text().splitlines()][48:]
    good, bad = ([r["predicted_reward"] for r in rows if r["reward"] == x] for x in (1.0, 0.0))
    assert min(good) > max(bad) and all(0 <= p <= 1 for p in good + bad)
    body_of = body("reward_model", tmp_path, dataset_path=str(tmp_path / "rows.jsonl"), base_model=run_id)
    model = Made(workspace, body_of).trainer.model
    saved = workspace.runs.locate(run_id).file("final") / "adapter_model.safetensors"
    from safetensors.torch import load_file

    head = next(tensor for name, tensor in load_file(saved).items() if name.endswith("score.weight"))
    assert (model.get_base_model().score.weight == head).all(), "the trained head, not a new one"
    written(tmp_path, [judged("process", i) for i in range(8)], "process.jsonl")
    with pytest.raises(BashGymError) as caught:
        workspace.runs.check({**body_of, "dataset_path": str(tmp_path / "process.jsonl")})
    assert caught.value.code == "unsupported_model" and "TOKEN_CLS" in caught.value.message


def test_steps_are_told_apart_and_judged_within_their_process(workspace, tmp_path):
    run_id, scored = trained(workspace, tmp_path, "process")
    rows = [json.loads(line) for line in scored.read_text().splitlines()][48:]
    steps = [(p, s["reward"]) for r in rows for p, s in zip(r["predicted_steps"], r["steps"], strict=True)]
    assert min(p for p, r in steps if r) > max(p for p, r in steps if not r)
    assert all(row["predicted_reward"] == min(row["predicted_steps"]) for row in rows)
    report = evaluate(scored, run_id=run_id)
    assert report["ok"] and report["metrics"]["pair_count"] == 12 * 2 + 12, report["findings"]
    pairs = written(tmp_path, [judged("preference", 1)], "pairs.jsonl")
    with pytest.raises(BashGymError) as caught:
        score_file(run_id, pairs, tmp_path / "none.jsonl", workspace.settings)
    assert caught.value.code == "reward_rows_invalid" and "row 1" in caught.value.message


def test_a_reward_model_may_begin_at_a_language_models_adapter_only_as_a_whole(workspace, tmp_path):
    sft = written(tmp_path, [{"prompt": f"{i}?", "completion": "yes"} for i in range(8)], "sft.jsonl")
    request = {**body("dpo", tmp_path, dataset_path=str(sft), max_steps=1), "strategy": "sft"}
    base = workspace.runs.start(request)["run_id"]
    assert wait_end(workspace, base)["status"] == "completed"
    with pytest.raises(BashGymError) as caught:
        workspace.runs.check(body("reward_model", tmp_path, base_model=base))
    assert caught.value.code == "unsupported_model" and "merged" in caught.value.hint
    trainer = Made(workspace, body("reward_model", tmp_path, base_model=base, use_lora=False)).trainer
    assert type(trainer.model).__name__ == "Qwen2ForSequenceClassification"
    assert all(weight.requires_grad for weight in trainer.model.parameters())


def test_scoring_refuses_what_is_no_reward_model(workspace, tmp_path):
    path = written(tmp_path, [{"prompt": "p", "response": "r"}])
    with pytest.raises(BashGymError) as caught:
        score_file(TINY, path, tmp_path / "out.jsonl", workspace.settings)
    assert caught.value.code == "unsupported_model" and not (tmp_path / "out.jsonl").exists()
