"""What trains is the formula: each loss against a dozen lines of plain torch, on policy and with ratios that are clipped."""

import math
import zlib

import pytest
import torch

from bashgym.models.catalog import resolve
from bashgym.training.load import load_model

from .conftest import TINY
from .grpo_tools import make_trainer

pytestmark = pytest.mark.train
GROUP, WINDOW, LIMIT, TEMPERATURE = 4, 2, 6, 1.3
CLIP = dict.fromkeys(("grpo", "dr_grpo", "dapo", "bnpo"), (0.02, 0.03)) | {"gspo": (0.002, 0.003)}
"""Narrow enough for the updates of the test to pass it; a ratio of whole answers moves less."""


def rule(prompt, answer):
    """Equal rewards for two prompts in three, now and then no verdict."""
    mark = zlib.crc32(answer.encode())
    if mark % 11 == 0:
        return None
    return 1.0 if int(prompt.split()[1]) % 3 else mark % 5 / 4


def log_probs(model, prompt_ids, prompt_mask, ids):
    """(B, T) log probabilities of the answers `ids`, by the model's own logits."""
    tokens = torch.cat([prompt_ids, ids], dim=1)
    mask = torch.cat([prompt_mask, torch.ones_like(ids)], dim=1)
    logits = model(input_ids=tokens, attention_mask=mask).logits[:, prompt_ids.shape[1] - 1 : -1] / TEMPERATURE
    return logits.log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2)


def answer_mask(ids, ends):
    """1 up to and including the first stop token."""
    is_end = torch.isin(ids, torch.tensor(ends))
    return ((is_end.cumsum(1) - is_end.long()) == 0).long()


def advantages(rewards, loss, filtering):
    """(A, kept) by group of one prompt; None without a verdict."""
    known = [r for r in rewards if r is not None]
    mean = sum(known) / len(known)
    spread = math.sqrt(sum((r - mean) ** 2 for r in known) / (len(known) - 1)) if len(known) > 1 else 0.0
    kept = [r is not None and (spread > 1e-8 or not filtering) for r in rewards]
    scale = 1.0 if loss == "dr_grpo" else spread + 1e-4
    return [0.0 if r is None or len(known) < 2 else (r - mean) / scale for r in rewards], kept


def reference(loss, by_token, beta, clip, new, old, ref, mask, adv, kept):
    """The scalar of one optimizer step of B answers, from (B, T) log probabilities."""
    mask = mask * kept[:, None]
    ratio = (new - old).exp()
    if loss == "gspo":
        ratio = (((new - old) * mask).sum(1) / mask.sum(1).clamp(min=1)).exp()[:, None].expand_as(new)
    gain = torch.minimum(ratio * adv[:, None], ratio.clamp(1 - clip[0], 1 + clip[1]) * adv[:, None])
    token = -gain + beta * ((ref - new).exp() - (ref - new) - 1)
    if loss in ("grpo", "gspo") and not by_token:
        return ((token * mask).sum(1) / mask.sum(1).clamp(min=1)).sum() / kept.sum()
    if loss == "dr_grpo":
        return (token * mask).sum() / (kept.sum() * LIMIT)
    if loss == "bnpo":
        parts = [
            (t * m).sum() / m.sum() for t, m in zip(token.chunk(WINDOW), mask.chunk(WINDOW), strict=True) if m.any()
        ]
        return sum(parts) / len(parts)
    return (token * mask).sum() / mask.sum()


CASES = [("grpo", False), ("grpo", True), ("gspo", False), ("dr_grpo", True), ("dapo", True), ("bnpo", True)]


def facts(trainer, part):
    """(prompt, answer) texts of a micro-batch."""
    texts = (
        trainer.processing_class.batch_decode(part[k], skip_special_tokens=True)
        for k in ("prompt_ids", "completion_ids")
    )
    return list(zip(*texts, strict=True))


@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(("loss", "by_token"), CASES)
def test_loss_and_gradient_are_those_of_the_formula(loss, by_token, beta, filtering, workspace, tmp_path):
    fields = {
        "grpo_loss_type": loss,
        "token_level_loss": by_token,
        "grpo_beta": beta,
        "filter_zero_std_groups": filtering,
    }
    fields |= {
        "prompts_per_rollout_batch": 6,
        "grpo_ratio_clip_min": CLIP[loss][0],
        "grpo_ratio_clip_max": CLIP[loss][1],
    }
    trainer, _ = make_trainer(workspace.settings, tmp_path / "run", rule, **fields)
    model, initial = trainer.model, load_model(resolve(TINY, workspace.settings).path, dtype=torch.float32)
    trainer.current_gradient_accumulation_steps = WINDOW
    model.train()
    trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    parts = trainer._buffered_inputs
    groups = {}
    for prompt, text in (fact for part in parts for fact in facts(trainer, part)):
        groups.setdefault(prompt, []).append(rule(prompt, text))
    assert {len(rewards) for rewards in groups.values()} == {GROUP}
    for start in range(0, len(parts), WINDOW):
        window = parts[start : start + WINDOW]
        told, gradient = trained(trainer, window)
        wanted = expected(trainer, window, groups, initial, loss, by_token, beta, filtering)
        assert told == pytest.approx(wanted.item(), abs=1e-5)
        model.zero_grad()
        if wanted.requires_grad:
            wanted.backward()
            assert torch.allclose(gradient, model.model.norm.weight.grad, atol=1e-5)
        else:
            assert not gradient.any()
        with torch.no_grad():  # an update that moves the ratios beyond the clip range
            generator = torch.Generator().manual_seed(start)
            for weight in model.parameters():
                weight += 0.001 * torch.randn(weight.shape, generator=generator)
    assert sum(trainer._metrics["train"]["clip_ratio/region_mean"]) > 0, "the clip range was not tested"


def trained(trainer, window):
    """(loss, gradient of the last norm) of one optimizer step."""
    trainer.model.zero_grad()
    told = 0.0
    for part in window:
        value = trainer.compute_loss(trainer.model, part)
        value.backward()
        told += value.item()
    return told, trainer.model.model.norm.weight.grad.clone()


def expected(trainer, window, groups, initial, loss, by_token, beta, filtering):
    """The formula over the same tokens; a constant 0 where nothing is kept."""
    inputs = [(part["prompt_ids"], part["prompt_mask"], part["completion_ids"]) for part in window]
    with torch.no_grad():
        old = torch.cat([log_probs(initial, *item) for item in inputs])
    adv, kept = [], []
    for prompt, text in (fact for part in window for fact in facts(trainer, part)):
        values, keeps = advantages(groups[prompt], loss, filtering)
        place = groups[prompt].index(rule(prompt, text))
        adv.append(values[place])
        kept.append(keeps[place])
    if not any(kept):
        return torch.zeros(())
    mask = torch.cat([answer_mask(item[2], trainer.eos_token_ids) for item in inputs])
    new = torch.cat([log_probs(trainer.model, *item) for item in inputs])
    return reference(loss, by_token, beta, CLIP[loss], new, old, old, mask, torch.tensor(adv), torch.tensor(kept))
