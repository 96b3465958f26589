"""The scripts, in the order in which the documents have them, on a real model: corpus, SFT, GRPO, merge, post-save."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.train
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
TINY = "bashgym/tiny-qwen2"


def script(name, *argv, code=0):
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"{name}.py", *map(str, argv)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr[-1500:]
    return done


def report(name):
    return json.loads(Path("outputs/reports", name).read_text())


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """An empty folder in which the first steps were taken."""
    before, folder = os.getcwd(), tmp_path_factory.mktemp("loop")
    os.environ["BASHGYM_DIR"] = str(tmp_path_factory.mktemp("home"))
    os.chdir(folder)
    easy = ("easy/ddi_screening", "easy/regimen_risk")
    rows = ("--sft-rows", 60, "--grpo-prompts", 16, "--tasks", *easy)
    script("build_training_corpus", "--with-local", "--with-synthetic", "--with-hf", *rows)
    short = ("--model-id", TINY, "--ask", 2, "--batch-size", 4)
    script("train_sft_trl", *short, "--max-steps", 3, "--use-unsloth")
    script("train_grpo_trl", *short, "--max-steps", 2, "--num-generations", 4, "--max-completion-length", 32)
    yield folder
    os.chdir(before)
    del os.environ["BASHGYM_DIR"]


def test_the_corpus_says_what_it_is_made_of_and_holds_nothing_out(loop):
    found = report("training_corpus_report.json")
    assert found["holdout_overlap"] == 0 and found["sft_examples"] == 60 and found["grpo_prompts"] == 16
    assert found["sources"]["hf"]["skipped_reason"] and found["sources"]["synthetic"]["count"] >= 48
    rows = [json.loads(line) for line in Path("data/processed/training_corpus_sft.jsonl").read_text().splitlines()]
    assert {row["split"] for row in rows} == {"train"}
    answers = [json.loads(row["messages"][-1]["content"]) for row in rows if row["source"] == "synthetic"]
    assert all(answer["candidate_id"].startswith("cand_") for answer in answers)


def test_both_stages_train_and_say_how_far_the_weights_moved(loop):
    sft, grpo = report("sft_trl_run.json"), report("grpo_trl_run.json")
    assert (sft["status"], grpo["status"]) == ("ok", "ok") and sft["backend"] == grpo["backend"] == "trl_transformers"
    assert sft["steps_completed"] == 3 and grpo["steps_completed"] == 2
    assert sft["weight_delta_norm"] > 0 and grpo["weight_delta_norm"] > 0
    assert (
        sft["unsloth"] == {"requested": True, "used": False, "reason": sft["unsloth"]["reason"]}
        and sft["unsloth"]["reason"]
    )
    assert len(grpo["reward_history"]) == 2 and set(grpo["reward_history"][0]["per_component"]) >= {"safety_legality"}
    for found in (sft, grpo):
        assert 0.001 <= found["holdout_reward"] <= 0.999 and len(found["sample_generations"]) == 2
        assert (
            not found["artifact_path"].startswith("/")
            and Path(found["artifact_path"], "adapter_model.safetensors").is_file()
        )
    assert json.loads(Path("checkpoints/grpo_adapter/run.json").read_text())["start"] == "checkpoints/sft_adapter"


def test_a_merge_answers_as_the_adapter_did_and_writes_over_nothing(loop):
    script("merge_adapters_safe", "--adapter-dir", "checkpoints/sft_adapter", "--output-dir", "checkpoints/merged")
    found = report("merge_report.json")
    assert found["greedy_agreement"] >= 0.95 and "model.safetensors" in found["files"]
    again = script("merge_adapters_safe", "--adapter-dir", "checkpoints/sft_adapter", code=1)
    assert "directory_unwritable" in again.stderr
    assert "file_missing" in script("merge_adapters_safe", "--adapter-dir", "data", code=1).stderr


def test_what_was_saved_answers_in_a_process_of_its_own(loop):
    script("test_inference_postsave", "--samples", 3)
    found = report("postsave_inference.json")
    assert found["model_source"] == "grpo_adapter" and len(found["rows"]) == 3 and found["latency_ms"]["mean"] > 0


def test_missing_things_are_named(loop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "build_training_corpus" in script("train_sft_trl", "--model-id", TINY, code=1).stderr
    assert "model_missing" in script("test_inference_postsave", code=1).stderr
    assert "usage" in script("build_training_corpus", code=2).stderr
