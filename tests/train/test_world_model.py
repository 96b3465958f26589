"""ECHO and RWML as objectives of grpo: against plain torch, and through a real run."""

import json
import math

import pytest

from .conftest import TINY, wait_end
from .grpo_tools import make_trainer
from .strategies import body, transitions

pytestmark = pytest.mark.train


def batch(torch, seed=0):
    """Two answers of six tokens after prompts of three: sampled 1 1, shown 0 0 0 (one of them special), sampled 1."""
    torch.manual_seed(seed)
    ids = torch.randint(20, 400, (2, 6))
    ids[0, 2] = 1  # <|im_start|>
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return {
        "prompt_ids": torch.randint(20, 400, (2, 3)),
        "prompt_mask": torch.ones(2, 3, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": mask,
        "tool_mask": torch.tensor([[1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 1]]),
        "advantages": torch.tensor([1.0, -1.0]),
        "num_items_in_batch": torch.tensor(10),
        "kept": torch.tensor([True, True]),
    }


def test_the_loss_is_grpo_plus_lambda_times_the_mean_over_all_observation_tokens(workspace, tmp_path):
    import torch

    from bashgym.training import echo
    from bashgym.training.batches import normalise

    made, _ = make_trainer(workspace.settings, tmp_path / "run", lambda *_: 1.0, grpo_temperature=1.0)
    trainer, losses = made, {}
    trainer.current_gradient_accumulation_steps = 2
    trainer.model.train()
    for weight in (None, 0.0, 0.5):
        parts = normalise(
            [batch(torch, 0), batch(torch, 1)], window=2, processes=1, loss_type="grpo", total=lambda counts: counts
        )
        shaping = type(trainer._shaping)(echo_lambda=weight)
        trainer._shaping = shaping
        if weight is not None:
            echo.count(parts, 2, lambda counts: counts)
            assert [int(part["observation_tokens"]) for part in parts] == [12, 12]  # 3 + 3 in each of two
        losses[weight] = [trainer._compute_loss(trainer.model, part) for part in parts]

    total = 0.0
    for part in (batch(torch, 0), batch(torch, 1)):
        whole = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
        attention = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
        logits = trainer.model(input_ids=whole, attention_mask=attention).logits[:, 2:-1].log_softmax(-1)
        logprobs = logits.gather(-1, part["completion_ids"][..., None]).squeeze(-1)
        special = set(trainer._tokenizer.all_special_ids)
        for row in range(2):
            for t in range(6):
                shown = part["completion_mask"][row, t] and not part["tool_mask"][row, t]
                if shown and int(part["completion_ids"][row, t]) not in special:
                    total -= logprobs[row, t].item() / 12
    plain, unweighted, with_echo = (sum(loss.item() for loss in losses[weight]) for weight in (None, 0.0, 0.5))
    assert unweighted == pytest.approx(plain, abs=1e-6)
    assert with_echo - plain == pytest.approx(0.5 * total, abs=1e-5) and total > 1
    logged = trainer._metrics["train"]["echo_loss"][-2:]
    assert sum(logged) / 2 == pytest.approx(total, abs=1e-5)
    assert trainer._metrics["train"]["echo_observation_tokens"][-1] == 12


def test_a_gradient_step_on_observations_makes_them_likelier_and_excluded_ids_have_no_gradient():
    import torch

    from bashgym.training.echo import observation_loss

    logprobs = torch.full((1, 4), -2.0, requires_grad=True)
    seen, left_out = torch.tensor([[False, True, True, True]]), torch.tensor([[False, False, True, False]])
    loss = observation_loss(logprobs, seen, left_out, torch.tensor(3))
    assert loss.item() == pytest.approx(4 / 3)
    loss.backward()
    assert logprobs.grad.tolist() == [[0.0, pytest.approx(-1 / 3), 0.0, pytest.approx(-1 / 3)]]
    assert observation_loss(logprobs, seen & False, left_out, torch.tensor(0)).item() == 0


def test_an_answer_without_a_tool_has_no_observation(workspace, tmp_path):
    import torch

    from bashgym.training.echo import observed

    single = batch(torch)
    del single["tool_mask"]
    assert not observed(single).any()


# -- RWML ---------------------------------------------------------------------------------------------------------------


def test_pooled_states_are_the_mean_over_a_texts_own_tokens(workspace):
    import torch

    from bashgym.envs.rewards.rwml import cosine_distance
    from bashgym.inference.job import JobModel
    from bashgym.inference.scoring import load
    from bashgym.training.embedding import model_embedding

    path = workspace.model(TINY).path
    embed = model_embedding(path)
    texts = ["cat notes", "No such file or directory, says the shell", ""]
    together = embed(texts)
    model, tokenizer = load(JobModel(str(path)))
    for text, vector in zip(texts[:2], together, strict=False):
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected = model.base_model(ids).last_hidden_state[0].float().mean(0)
        assert [vector[i] for i in range(len(vector))] == pytest.approx(expected.tolist(), abs=1e-4)
        assert cosine_distance(vector, embed([text])[0]) == pytest.approx(0, abs=1e-6)
    assert together[2] == {}


def test_a_run_on_transitions_is_rewarded_by_distance_and_reports_it(workspace, tmp_path):
    path = tmp_path / "replay.jsonl"
    path.write_text("".join(json.dumps(transitions(i)) + "\n" for i in range(16)))
    request = body(
        "grpo", tmp_path, dataset_path=str(path), rwml_enabled=True, max_seq_length=128, max_steps=3,
        rwml_distance_threshold=0.9, rwml_kl_beta=0.05,
    )  # fmt: skip
    request.pop("grpo_reward_mode")
    run_id = workspace.runs.start(request)["run_id"]
    final = wait_end(workspace, run_id)
    assert final["status"] == "completed", final
    run = workspace.runs.locate(run_id)
    points = [point for point in run.metrics() if "loss" in point]
    for point in points:
        assert 0 <= point["rwml_pass_rate"] <= 1 and point["reward"] == pytest.approx(point["rwml_pass_rate"])
        assert 0 <= point["embedding_distance_mean"] <= point["embedding_distance_p95"] + 1e-9 <= 2
        assert point["rwml_easy_groups_dropped"] >= 0
    assert all(math.isfinite(point["kl"]) for point in points if "kl" in point) and any("kl" in p for p in points)
    for sample in run.samples():
        assert sample["reward"] == float(sample["parts"]["embedding_distance"] < 0.9)
    prompts = {json.dumps(sample["prompt"]) for sample in run.samples()}
    assert any("Predict what the terminal shows" in prompt for prompt in prompts)
    assert run.request()["grpo_reward_mode"] == "rwml" and run.request()["grpo_beta"] == 0.05


def test_easy_groups_leave_the_loss_with_the_set_probability(workspace, tmp_path):
    trainer, _ = make_trainer(workspace.settings, tmp_path / "run", lambda *_: 1.0)
    shaping = type(trainer._shaping)
    trainer._shaping = shaping(easy=(0.75, 0.1))
    hard, easy = [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]
    dropped = kept = 0
    for step in range(300):
        trainer.state.global_step = step
        trainer._scored = type("S", (), {"rewards": hard + easy})()
        first = trainer._without_easy([True, True], 4)
        assert first == trainer._without_easy([True, True], 4) and first[0]
        kept += first[1]
        dropped += not first[1]
    assert 10 <= kept <= 55  # 10 % of 300, five standard deviations wide
