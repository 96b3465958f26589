"""A policy trainer on the tiny model whose judge is a plain function of the answer's text, for tests of its arithmetic."""

from pathlib import Path

from bashgym.envs.rewards import RewardResult, RewardStatus
from bashgym.methods.request import parse_request
from bashgym.models.catalog import resolve
from bashgym.store.run_dir import RunDir

from .conftest import TINY

FIELDS = {
    "strategy": "grpo",
    "base_model": TINY,
    "max_seq_length": 48,
    "max_completion_length": 6,
    "batch_size": 4,
    "gradient_accumulation_steps": 2,
    "use_lora": False,
    "dtype": "float32",
    "learning_rate": 1e-3,
    "grpo_temperature": 1.3,
    "torch_threads": 1,
    "sample_prompts": 0,
    "save_steps": 1000,
}


def verdict(reward):
    """What a verifier would say."""
    status = RewardStatus.ERROR if reward is None else RewardStatus.PASSED if reward > 0 else RewardStatus.FAILED
    return RewardResult(reward, {} if reward is None else {"score": reward}, status)


def make_trainer(settings, folder, rule, rows=8, adapter=None, **fields):
    """(trainer, run directory). `rule(prompt, completion text)` gives a reward, None for no verdict."""
    import torch

    from bashgym.data.preferences import PromptRow
    from bashgym.training import grpo
    from bashgym.training.load import load_tokenizer, student
    from bashgym.training.loop import Job, _prepare_process
    from bashgym.training.policy import PolicyTrainer
    from bashgym.training.rollouts import RolloutLog

    torch.set_num_threads(1)
    run = RunDir(Path(folder))
    run.path.mkdir(parents=True, exist_ok=True)
    request = parse_request({**FIELDS, "dataset_path": "rows.jsonl", **fields}).as_dict()
    model = resolve(TINY, settings)
    facts = {**model.facts(), "adapter_path": adapter}
    job = Job(run, request, {"model": facts, "backend": {"name": "plain", "load_in_4bit": False}})
    _prepare_process(request)
    prompts = [PromptRow(f"digit {i}", {}, i + 1, {"prompt": f"digit {i}"}) for i in range(rows)]
    weights, peft_config = student(request, job.manifest)

    def judge(asked, answers, given, environments):
        return [verdict(rule(prompt, answer)) for prompt, answer in zip(asked, answers, strict=True)]

    trainer = PolicyTrainer(
        model=weights,
        args=grpo.config(job, with_eval=False),
        judge=judge,
        shaping=grpo.shaping(request),
        log=RolloutLog(run),
        train_dataset=grpo.dataset(prompts),
        processing_class=load_tokenizer(model.path),
        peft_config=peft_config,
    )
    return trainer, run
