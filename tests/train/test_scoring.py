"""The scoring process and its engine, on the real tiny model: right answers, resumable, ended cleanly, typed errors."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.evals import scoring
from bashgym.inference.job import Decoding, Job, JobModel, Prompt, attempt_seed, read_completions, write_job
from bashgym.models.catalog import ensure_tiny

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return Settings.from_env({"BASHGYM_DIR": str(home), "BASHGYM_TRAINING_PYTHON": sys.executable}, home)


@pytest.fixture(scope="module")
def tiny(settings):
    return ensure_tiny(settings)


@pytest.fixture(scope="module")
def loaded(tiny):
    import torch

    from bashgym.inference.scoring import load

    torch.set_num_threads(1)
    return load(JobModel(str(tiny)))


def talk(*texts):
    return [[{"role": "user", "content": text}] for text in texts]


TEXTS = [
    "list the files",
    "make a folder named bido and put three lines into a file in it",
    "go",
    "count words in nopa.txt",
]


def job(folder, model, n=12, **decoding):
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [Prompt(item_id=f"i{i}", messages=[{"role": "user", "content": "x " * (i + 1)}]) for i in range(n)]
    options = {"max_new_tokens": 6, "batch_size": 4, "temperature": 1.0, "attempts": 2, **decoding}
    write_job(folder, Job(model=model, decoding=Decoding(**options), threads=1), prompts)
    return folder


def test_greedy_answers_are_those_of_transformers_generate(loaded):
    model, tokenizer = loaded
    from bashgym.inference.local import generate

    ours = generate(model, tokenizer, talk(*TEXTS), max_new_tokens=12, temperature=0.0, seed=0)
    for text, answer in zip(TEXTS, ours, strict=True):
        ids = tokenizer.apply_chat_template(talk(text)[0], add_generation_prompt=True, return_tensors="pt")["input_ids"]
        made = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        assert answer == tokenizer.decode(made, skip_special_tokens=True)


def test_a_sampled_answer_does_not_depend_on_its_neighbours(loaded):
    model, tokenizer = loaded
    from bashgym.inference.local import Engine, Sampling, encode_prompt

    engine, sampling = Engine(model, tokenizer), Sampling(10, 1.0, 0.9)
    prompts = [encode_prompt(tokenizer, messages) for messages in talk(*TEXTS)]
    together = engine.decode(prompts, [1, 2, 3, 4], sampling)
    alone = [engine.decode([prompt], [seed], sampling)[0] for prompt, seed in zip(prompts, [1, 2, 3, 4], strict=True)]
    assert together == alone
    assert engine.decode(prompts[:1], [9], sampling) != alone[:1]


def test_sampling_follows_the_models_distribution_and_top_p_cuts_its_tail():
    import numpy as np
    import torch

    from bashgym.inference.local import Sampling, _choose

    probabilities = torch.tensor([0.1, 0.6, 0.05, 0.25])
    uniform = np.random.default_rng(0).random(20_000)
    logits = probabilities.log().expand(len(uniform), 4)
    drawn = torch.bincount(_choose(logits, Sampling(1, 1.0), uniform), minlength=4) / len(uniform)
    assert torch.allclose(drawn, probabilities, atol=0.02)
    cut = torch.bincount(_choose(logits, Sampling(1, 1.0, 0.8), uniform), minlength=4) / len(uniform)
    assert torch.allclose(cut, torch.tensor([0, 0.6, 0, 0.25]) / 0.85, atol=0.02)


def test_generation_stops_at_the_turn_end_and_says_so(loaded):
    model, tokenizer = loaded
    from bashgym.inference.local import Engine, Sampling, encode_prompt, stop_ids

    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in stop_ids(model, tokenizer)
    engine = Engine(model, tokenizer)
    prompt = encode_prompt(tokenizer, talk("go")[0])
    free = engine.decode([prompt], [0], Sampling(8))[0]
    assert (free.finish_reason, free.n_tokens) == ("length", 8)
    first = tokenizer(free.text, add_special_tokens=False)["input_ids"][0]
    engine._stops = frozenset({first})
    stopped = engine.decode([prompt], [0], Sampling(8))[0]
    assert (stopped.finish_reason, stopped.n_tokens, stopped.text) == ("stop", 1, "")


def test_a_prompt_that_fills_the_window_is_answered_with_nothing(loaded):
    model, tokenizer = loaded
    from bashgym.inference.local import Engine, Sampling

    window = model.config.max_position_embeddings
    answers = Engine(model, tokenizer).decode([[5] * window, [5] * (window - 2)], [0, 1], Sampling(8))
    assert [answer.n_tokens for answer in answers] == [0, 2]
    assert {answer.finish_reason for answer in answers} == {"length"}


def test_generating_samples_leaves_random_state_and_mode_alone(loaded):
    import torch

    from bashgym.inference.local import generate

    model, tokenizer = loaded
    before, mode = torch.get_rng_state(), model.training
    generate(model, tokenizer, talk("go"), max_new_tokens=4, temperature=1.0, seed=3)
    assert torch.equal(before, torch.get_rng_state()) and model.training is mode


def test_a_conversation_without_a_template_is_a_typed_error(loaded):
    from copy import copy

    from bashgym.inference.local import encode_prompt

    bare = copy(loaded[1])
    bare.chat_template = None
    with pytest.raises(BashGymError) as caught:
        encode_prompt(bare, talk("go")[0])
    assert caught.value.code == "template_failed"


def test_an_adapter_changes_the_answers_and_a_pickled_one_is_refused(tiny, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    from bashgym.inference.local import generate
    from bashgym.inference.scoring import load

    model, tokenizer = load(JobModel(str(tiny)))
    plain = generate(model, tokenizer, talk(*TEXTS), max_new_tokens=8, temperature=0.0, seed=0)
    torch.manual_seed(0)  # before peft draws lora_A: with an unlucky draw eight greedy tokens can stay the same
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    for name, weight in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=2.0)
    tuned = generate(wrapped, tokenizer, talk(*TEXTS), max_new_tokens=8, temperature=0.0, seed=0)
    wrapped.save_pretrained(tmp_path)
    again = generate(*load(JobModel(str(tiny), str(tmp_path))), talk(*TEXTS), max_new_tokens=8, temperature=0.0, seed=0)
    assert again == tuned != plain
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(BashGymError) as caught:
        load(JobModel(str(tiny), str(tmp_path)))
    assert caught.value.code == "model_unsafe"


def test_a_job_killed_in_mid_write_resumes_to_the_same_completions(settings, tiny, tmp_path):
    whole, cut = job(tmp_path / "whole", JobModel(str(tiny))), job(tmp_path / "cut", JobModel(str(tiny)))
    shown = []
    scoring.run([whole], settings, lambda folder, progress: shown.append(progress["done"]))
    lines = (whole / "completions.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 24 and shown[-1] == 24
    # Five whole lines and a torn one: inside a batch, and inside a line.
    (cut / "completions.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:20])
    scoring.run([cut], settings)
    assert read_completions(cut / "completions.jsonl") == read_completions(whole / "completions.jsonl")
    assert len((cut / "completions.jsonl").read_bytes().splitlines()) == 24
    assert (cut / "completions.jsonl").read_bytes().startswith(b"".join(lines[:5]))
    one = read_completions(whole / "completions.jsonl")["i3", 1]
    assert one.seed == attempt_seed(0, "i3", 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_resumable_job_and_no_traceback(tiny, tmp_path, number):
    folder = job(tmp_path / "job", JobModel(str(tiny)), n=400, max_new_tokens=64, batch_size=8, attempts=1)
    child = subprocess.Popen(
        [sys.executable, "-m", "bashgym.inference", str(folder)],
        env=child_env(OMP_NUM_THREADS="1"),
        stderr=subprocess.PIPE,
    )
    output = folder / "completions.jsonl"
    end = time.monotonic() + 120
    while not output.is_file() and time.monotonic() < end:
        time.sleep(0.02)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130 and b"Traceback" not in errors
    assert 0 < len(read_completions(output)) < 400
    assert output.read_bytes().endswith(b"\n") and not (folder / "error.json").exists()


def test_a_scoring_process_whose_parent_is_gone_ends_itself(settings, tiny, tmp_path):
    folder = job(tmp_path / "job", JobModel(str(tiny)))
    spec = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**spec, "parent_pid": os.getpid() + 1}))
    with pytest.raises(BashGymError) as caught:
        scoring.run([folder], settings)
    assert caught.value.code == "interrupted"
    assert not read_completions(folder / "completions.jsonl")


def test_a_model_with_pickled_weights_is_not_loaded(settings, tiny, tmp_path):
    import shutil

    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(BashGymError) as caught:
        scoring.run([job(tmp_path / "job", JobModel(str(model)))], settings)
    assert caught.value.code == "model_unsafe"


def test_a_killed_scoring_process_is_named_by_its_signal(settings, tiny, tmp_path):
    folder = job(tmp_path / "job", JobModel(str(tiny)), n=400, max_new_tokens=64, batch_size=8)

    def kill(at, progress):
        if progress["done"]:
            for pid in children():
                os.kill(pid, signal.SIGKILL)

    def children():
        import psutil

        return [c.pid for c in psutil.Process().children() if "bashgym.inference" in c.cmdline()]

    with pytest.raises(BashGymError, match="SIGKILL") as caught:
        scoring.run([folder], settings, kill)
    assert caught.value.code == "scoring_failed" and read_completions(folder / "completions.jsonl")


def test_an_interpreter_without_torch_is_a_typed_error(tiny, tmp_path):
    # -S leaves site-packages out; msgspec comes from a folder of its own, torch from nowhere.
    import msgspec

    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "msgspec").symlink_to(os.path.dirname(msgspec.__file__))
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{lib}" exec {sys.executable} -S "$@"\n')
    shim.chmod(0o755)
    settings = Settings.from_env({"BASHGYM_TRAINING_PYTHON": str(shim)}, tmp_path)
    with pytest.raises(BashGymError) as caught:
        scoring.run([job(tmp_path / "job", JobModel(str(tiny)))], settings)
    assert caught.value.code == "missing_extra" and "bashgym[train]" in caught.value.hint


def test_an_interpreter_that_does_not_exist_is_a_typed_error(tiny, tmp_path):
    settings = Settings.from_env({"BASHGYM_TRAINING_PYTHON": str(tmp_path / "none")}, tmp_path)
    with pytest.raises(BashGymError) as caught:
        scoring.run([job(tmp_path / "job", JobModel(str(tiny)))], settings)
    assert caught.value.code == "missing_extra"
