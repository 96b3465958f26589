"""The reference DPPO update and the scorer, against a dozen lines of plain torch."""

import json
import math
import os
import re

import pytest

from bashgym.core.settings import Settings
from bashgym.data.replay_records import TurnLogprobs, behavior_policy, parse_record, read_records

from .conftest import TINY
from .strategies import body, rows

pytestmark = pytest.mark.train


def plain_loss(logprobs, behaviour, advantages, divergence, threshold):
    """The formula once more, token by token in doubles."""
    total, masked = 0.0, []
    for lp, lq, a in zip(logprobs, behaviour, advantages, strict=True):
        p = min(max(math.exp(min(lp, 0)), 1e-12), 1 - 1e-12)
        q = min(max(math.exp(min(lq, 0)), 1e-12), 1 - 1e-12)
        kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        far = (abs(p - q) if divergence == "binary_tv" else kl) > threshold
        masked.append(far and ((a > 0 and p > q) or (a < 0 and p < q)))
        total += 0.0 if masked[-1] else -a * math.exp(lp - lq)
    return total, masked


@pytest.mark.parametrize(("divergence", "threshold"), [("binary_tv", 0.15), ("binary_kl", 0.05), ("binary_tv", 0.0)])
def test_the_loss_is_the_formula_and_masked_tokens_have_no_gradient(divergence, threshold):
    import torch

    from bashgym.training.dppo import token_loss

    torch.manual_seed(1)
    logprobs = (-4 * torch.rand(400, dtype=torch.float64)).requires_grad_()
    behaviour, advantages = -4 * torch.rand(400, dtype=torch.float64), torch.randn(400, dtype=torch.float64)
    loss, masked, tv = token_loss(logprobs, behaviour, advantages, divergence=divergence, threshold=threshold)
    expected, left_out = plain_loss(logprobs.tolist(), behaviour.tolist(), advantages.tolist(), divergence, threshold)
    assert loss.sum().item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert masked.tolist() == left_out and 0 < sum(left_out) < 400
    assert torch.allclose(tv, (logprobs.exp() - behaviour.exp()).abs())
    loss.sum().backward()
    assert (logprobs.grad[masked] == 0).all()
    # Outside the mask the gradient of -A r is -A r: the policy gradient weighted by the ratio.
    expected = -advantages * (logprobs - behaviour).exp()
    assert torch.allclose(logprobs.grad[~masked], expected.detach()[~masked])


def test_masks_agree_with_the_torch_free_arithmetic():
    import torch

    from bashgym.data.dppo import judge_tokens
    from bashgym.training.dppo import token_loss

    torch.manual_seed(2)
    train, behaviour, advantages = -5 * torch.rand(300), -5 * torch.rand(300), torch.randn(300)
    for divergence, threshold in (("binary_tv", 0.15), ("binary_kl", 0.05)):
        _, masked, _ = token_loss(train, behaviour, advantages, divergence=divergence, threshold=threshold)
        plain = judge_tokens(train.tolist(), behaviour.tolist(), advantages.tolist(), divergence=divergence)
        assert masked.tolist() == [update.masked for update in plain]


@pytest.fixture
def policy(workspace):
    """(model in evaluation mode, tokenizer, ModelRef)."""
    from bashgym.inference.job import JobModel
    from bashgym.inference.scoring import load

    ref = workspace.model(TINY)
    return *load(JobModel(str(ref.path))), ref


def direct_logprobs(model, tokenizer, record):
    """log p of the sampled tokens, one forward pass a turn, without padding or batching."""
    import torch

    found = []
    for turn in record.behavior_policy.response_logprobs:
        text = tokenizer.apply_chat_template(
            record.trajectory.messages[: turn.turn], tokenize=False, add_generation_prompt=True
        )
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = tokenizer("".join(turn.tokens), add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0].float().log_softmax(-1)
        found += [logits[len(prompt) + i - 1, token].item() for i, token in enumerate(ids)]
    return found


def test_the_scorer_gives_what_single_forward_passes_give(workspace, policy, tmp_path):
    from bashgym.evals.replay import score_file

    model, tokenizer, _ = policy
    made = rows("dppo")[:8]
    made[1]["trajectory"]["messages"] += [{"role": "user", "content": "again"}, {"role": "assistant", "content": "3"}]
    turn = {"turn": 3, "tokens": ["3", "<|im_end|>"], "logprobs": [-1.0, -1.0]}
    made[1]["behavior_policy"]["response_logprobs"].append(turn)
    path = tmp_path / "replay.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    report = score_file(path, TINY, tmp_path / "scored.jsonl", workspace.settings)
    assert report["train_logprobs_ready"] == 8 and report["sampled_tokens"] == 18
    for record in read_records(tmp_path / "scored.jsonl"):
        expected = direct_logprobs(model, tokenizer, record)
        assert record.train_policy.token_logprobs == pytest.approx(expected, abs=1e-4)
        assert record.optimizer.train_logprobs_ready and abs(record.optimizer.advantage) == 0.5


def test_a_replay_of_another_tokenizer_is_refused_before_anything_is_loaded(workspace, tmp_path):
    from bashgym.core.errors import BashGymError
    from bashgym.evals.replay import score_file

    row = rows("dppo")[0]
    row["behavior_policy"]["response_logprobs"][0]["tokens"] = ["Ġ0", "</s>"]
    path = tmp_path / "replay.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(BashGymError) as caught:
        score_file(path, TINY, tmp_path / "scored.jsonl", workspace.settings)
    assert caught.value.code == "replay_invalid" and not (tmp_path / "scored.jsonl").exists()


def test_an_update_raises_what_did_well_and_leaves_masked_tokens_alone(workspace, policy, tmp_path):
    """Behaviour log probabilities are the model's own, so nothing is masked at the first step."""
    from bashgym.evals.replay import train_logprobs

    from .conftest import wait_end

    *_, ref = policy
    records = [parse_record(row) for row in rows("dppo")[:16]]
    settings: Settings = workspace.settings
    before = train_logprobs(records, ref, settings)
    lines = []
    for record, entry in zip(records, before, strict=True):
        turn = record.behavior_policy.response_logprobs[0]
        turns = [TurnLogprobs(turn=1, tokens=turn.tokens, logprobs=entry.token_logprobs)]
        lines.append({**rows("dppo")[len(lines)], "behavior_policy": _plain(behavior_policy(turns))})
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = body("dppo", tmp_path, dataset_path=str(path), max_steps=12, batch_size=16, lora_dropout=0.0)
    run_id = workspace.runs.start({**request, "warmup_ratio": 0.0})["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    points = [point for point in workspace.runs.locate(run_id).metrics() if "masked_fraction" in point]
    assert points[0]["mean_binary_tv"] < 1e-4 and points[0]["masked_fraction"] == 0
    assert points[0]["logprob_coverage"] == 1 and points[0]["reward"] == 0.5 and points[0]["reward_std"] == 0.5
    assert (
        points[0]["frac_reward_zero_std"] == 0 and abs(points[0]["loss"]) < 1e-4
    )  # ratios of 1, advantages that cancel
    after = train_logprobs(records, workspace.model(run_id), settings)
    for record, old, new in zip(records, before, after, strict=True):
        gain = new.token_logprobs[0] - old.token_logprobs[0]
        assert gain > 0 if record.passed else gain < 0, (record.key, gain)


def _plain(value):
    import msgspec

    return msgspec.to_builtins(value)


def test_tokens_without_a_behaviour_log_probability_are_not_trained_and_counted(workspace, tmp_path):
    from .conftest import wait_end

    made = rows("dppo")
    for row in made:
        row["behavior_policy"]["response_logprobs"][0]["logprobs"][1] = None
    path = tmp_path / "half.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    request = body("dppo", tmp_path, dataset_path=str(path), max_steps=1)
    run_id = workspace.runs.start(request)["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    points = [point for point in workspace.runs.locate(run_id).metrics() if "logprob_coverage" in point]
    assert points[0]["logprob_coverage"] == 0.5


@pytest.fixture
def served(workspace):
    """Address of the tiny model behind `bashgym serve-model`."""
    import subprocess
    import sys

    command = [sys.executable, "-u", "-m", "bashgym", "serve-model", TINY, "--port", "0", "--threads", "1"]
    env = {**os.environ, "BASHGYM_DIR": str(workspace.settings.home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as child:
        yield next(re.search(r"http://[\d.:]+/v1", line)[0] for line in child.stdout if "http://" in line)
        child.terminate()


def test_what_the_endpoint_says_of_its_samples_is_what_the_scorer_says(workspace, policy, served):
    """The behaviour log probabilities of two sampled turns, over the wire, against the scoring process."""
    import asyncio

    from bashgym.evals.replay import train_logprobs
    from bashgym.inference.client import ChatClient, ChatRequest, EndpointSpec

    async def record(client, i):
        messages, turns = [{"role": "user", "content": f"digit {i}"}], []
        for turn in range(2):
            ask = ChatRequest(messages=messages, temperature=1.0, max_tokens=8, seed=10 * i + turn, logprobs=True)
            reply = await client.chat(ask)
            messages = [*messages, {"role": "assistant", "content": reply.text}]
            turns.append(
                TurnLogprobs(
                    turn=len(messages) - 1,
                    tokens=[token.token for token in reply.logprobs],
                    logprobs=[token.logprob for token in reply.logprobs],
                    token_ids=[token.token_id for token in reply.logprobs],
                    prompt_tokens=reply.prompt_tokens,
                )
            )
            messages = [*messages, {"role": "user", "content": "more"}]
        made = {**rows("dppo")[i], "trajectory": {"messages": messages[:-1]}}
        return parse_record({**made, "behavior_policy": _plain(behavior_policy(turns))})

    async def sample():
        async with ChatClient(EndpointSpec(base_url=served)) as client:
            return [await record(client, i) for i in range(4)]

    records = asyncio.run(sample())
    for made, entry in zip(records, train_logprobs(records, policy[2], workspace.settings), strict=True):
        assert entry.token_logprobs == pytest.approx(made.behavior_logprobs(), abs=1e-4)
