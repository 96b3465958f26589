"""What is left of a run: final/, merged/ and gguf/, from real models, real PEFT and real runs."""

import json
import os
import shutil
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.data.tokens import TokenizerBundle
from bashgym.models.catalog import ensure_tiny
from bashgym.training import gguf, merge
from bashgym.training.load import load_model, load_tokenizer
from bashgym.training.saving import write_verified

from .conftest import wait_end, wait_step
from .strategies import body

pytestmark = pytest.mark.train
HEADS = [
    {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    {"target_modules": ["q_proj", "lm_head"]},
    {"target_modules": ["q_proj", "embed_tokens"]},
]


@pytest.fixture(scope="module")
def base(model_home):
    return ensure_tiny(Settings.from_env({"BASHGYM_DIR": str(model_home)}, model_home))


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i} plus 1?", "completion": str(i + 1)}) + "\n" for i in range(9)))
    return path


def adapter(base, folder, scale=0.02, dtype=torch.float32, **config):
    """An adapter with random weights, as if trained."""
    torch.manual_seed(0)
    settings = {"r": 4, "task_type": "CAUSAL_LM", "target_modules": "all-linear", **config}
    model = get_peft_model(load_model(base, dtype=dtype), LoraConfig(**settings))
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.requires_grad):
            weight.add_(torch.randn_like(weight) * scale)
    write_verified(model, load_tokenizer(base), folder)
    return folder


def merged(base, folder, rows, dtype=torch.float32):
    """(what adapter-on-base answers, the folder of the merged model)."""
    model = merge.adapter_on_base(base, folder, dtype)
    reference = merge.answers(model, merge.probes(rows, load_tokenizer(base), model.config.vocab_size))
    write_verified(model.merge_and_unload(), load_tokenizer(base), folder.with_name("merged"))
    return reference, folder.with_name("merged")


@pytest.mark.parametrize("config", [{}, {"use_dora": True}, {"use_rslora": True}, *HEADS])
def test_a_merge_answers_as_adapter_and_base_do(base, rows, tmp_path, config):
    reference, folder = merged(base, adapter(base, tmp_path / "a", **config), rows)
    facts = merge.check_parity(reference, folder, torch.float32)
    assert facts["max_relative_difference"] < 1e-5 < 1e-3 < facts["adapter_effect"]
    assert facts["probes"] == merge.PROBE_ROWS + 1


@pytest.mark.parametrize("config", HEADS)
def test_a_trained_head_on_tied_embeddings_is_kept_apart_from_them(base, rows, tmp_path, config):
    assert json.loads((base / "config.json").read_text())["tie_word_embeddings"] is True
    _, folder = merged(base, adapter(base, tmp_path / "a", **config), rows)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_a_merge_that_leaves_the_head_alone_keeps_the_tie(base, rows, tmp_path):
    _, folder = merged(base, adapter(base, tmp_path / "a"), rows)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_and_passes_with_its_own_tolerance(base, rows, tmp_path, dtype):
    reference, folder = merged(base, adapter(base, tmp_path / "a", dtype=dtype), rows, dtype)
    merge.check_parity(reference, folder, dtype)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {dtype}
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def _corrupt(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["model.layers.2.mlp.down_proj.weight"].add_(0.05),
        lambda t: t["model.layers.0.self_attn.q_proj.weight"].zero_(),
        lambda t: t["model.embed_tokens.weight"][639].zero_(),
        lambda t: t["model.norm.weight"].fill_(float("nan")),
    ],
)
def test_a_corrupted_merge_is_found_out(base, rows, tmp_path, change):
    reference, folder = merged(base, adapter(base, tmp_path / "a"), rows)
    _corrupt(folder, change)
    with pytest.raises(BashGymError) as refused:
        merge.check_parity(reference, folder, torch.float32)
    assert refused.value.code == "merge_failed" and "checkpoints are kept" in refused.value.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merge_that_forgot_a_small_adapter_is_found_out(base, rows, tmp_path, dtype):
    folder = adapter(base, tmp_path / "a", scale=0.008, dtype=dtype)
    reference, made = merged(base, folder, rows, dtype)
    write_verified(load_model(base, dtype=dtype), load_tokenizer(base), made)
    with pytest.raises(BashGymError) as refused:
        merge.check_parity(reference, made, dtype)
    assert refused.value.code == "merge_failed"


@pytest.mark.parametrize("change", [{"eos_token": "<|endoftext|>"}, {"pad_token": "<|im_start|>"}])
def test_a_merge_with_another_tokenizer_is_found_out(base, rows, tmp_path, change):
    reference, folder = merged(base, adapter(base, tmp_path / "a"), rows)
    merge.check_tokenizer(reference, folder, load_tokenizer(base))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(BashGymError, match="special tokens"):
        merge.check_tokenizer(reference, folder, load_tokenizer(base))


def test_a_lost_chat_template_is_found_out(base, rows, tmp_path):
    reference, folder = merged(base, adapter(base, tmp_path / "a"), rows)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(BashGymError, match="chat template"):
        merge.check_tokenizer(reference, folder, load_tokenizer(base))


def test_added_tokens_and_resized_embeddings_survive_the_merge(base, rows, tmp_path):
    tokenizer, model = load_tokenizer(base), load_model(base, dtype=torch.float32)
    tokenizer.add_tokens(["<call>", "</call>"], special_tokens=True)
    model.resize_token_embeddings(len(tokenizer))
    write_verified(model, tokenizer, tmp_path / "resized")
    config = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}
    reference, folder = merged(tmp_path / "resized", adapter(tmp_path / "resized", tmp_path / "a", **config), rows)
    assert any(642 > max(probe) >= 640 for probe in reference.probes)
    merge.check_parity(reference, folder, torch.float32)
    merge.check_tokenizer(reference, folder, load_tokenizer(tmp_path / "resized"))
    assert load_file(folder / "model.safetensors")["lm_head.weight"].shape[0] == 642


def test_quantised_weights_are_not_merged_into(base, tmp_path):
    quantised = shutil.copytree(base, tmp_path / "quantised")
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "bitsandbytes"}})
    )
    with pytest.raises(BashGymError) as refused:
        merge.adapter_on_base(quantised, adapter(base, tmp_path / "a"), torch.float32)
    assert refused.value.code == "merge_failed" and "quantised" in refused.value.message


def test_probes_without_the_dataset_still_sweep_the_vocabulary(base, tmp_path):
    (sweep,) = merge.probes(tmp_path / "gone.jsonl", load_tokenizer(base), 640)
    assert sweep[0] == 0 and sweep[-1] == 639 and len(sweep) >= merge.PROBE_TOKENS


def test_only_the_trained_adapter_is_saved_beside_a_reference(base, tmp_path):
    config = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj"])
    model = get_peft_model(load_model(base, dtype=torch.float32), config)
    model.add_adapter("ref", config)
    write_verified(model, load_tokenizer(base), tmp_path / "final")
    names = load_file(tmp_path / "final" / "adapter_model.safetensors")
    assert not any("ref" in name for name in names) and not (tmp_path / "final" / "ref").exists()


# -- runs ----------------------------------------------------------------------------------------------------------------


def test_a_deployable_run_keeps_a_merged_model_that_stands_alone(workspace, tmp_path):
    request = body("dpo", tmp_path, max_steps=4, artifact_retention="deployable")
    started = workspace.runs.start(request)
    assert "gguf_not_exported" in {warning["code"] for warning in started["warnings"]}
    first = started["run_id"]
    assert wait_end(workspace, first)["status"] == "completed"
    run = workspace.runs.locate(first)
    (event,) = [event for event in run.events() if event["type"] == "merged-saved"]
    assert event["max_relative_difference"] < 1e-5 and event["probe_tokens"] > 50 and event["dtype"] == "float32"
    model_dir = run.manifest()["model"]["path"]
    for name in ("generation_config.json", "chat_template.jinja"):
        assert json.dumps(run.file(f"merged/{name}").read_text()) and os.path.exists(f"{model_dir}/{name}")
    assert (
        TokenizerBundle.load(run.file("merged")).stop_ids
        == TokenizerBundle.load(run.file("final").parent / "merged").stop_ids
    )
    for name in ("final", "merged"):
        card = run.file(f"{name}/README.md").read_text()
        assert "| Method | dpo |" in card and "Not evaluated" in card and str(tmp_path) not in card
    assert not list(run.path.glob("checkpoint-*")) and not list(run.path.glob(".*.partial"))

    # Preference training on top of an adapter: TRL puts a copy beside it as the reference.
    second = workspace.runs.start({**request, "base_model": first, "max_steps": 2})["run_id"]
    assert wait_end(workspace, second)["status"] == "completed"
    final = workspace.runs.locate(second).file("final")
    assert sorted(p.name for p in final.iterdir() if p.is_dir()) == []
    assert (
        load_file(final / "adapter_model.safetensors").keys()
        == load_file(run.file("final/adapter_model.safetensors")).keys()
    )
    assert workspace.runs.locate(second).file("merged/model.safetensors").is_file()


def test_full_fine_tuning_leaves_a_final_that_needs_no_merge(workspace, tmp_path):
    request = body("dpo", tmp_path, max_steps=2, artifact_retention="deployable", use_lora=False)
    run_id = workspace.runs.start(request)["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    assert not run.file("merged").exists() and "merged-skipped" in {event["type"] for event in run.events()}
    assert "library_name: transformers" in run.file("final/README.md").read_text()
    load_model(run.file("final"), dtype=torch.float32)


def test_a_merge_that_cannot_be_made_fails_the_run_and_leaves_the_adapter_and_its_checkpoint(workspace, base, tmp_path):
    away = shutil.copytree(base, tmp_path / "base")
    request = body("dpo", tmp_path, max_steps=12, artifact_retention="deployable", base_model=str(away))
    run_id = workspace.runs.start(request)["run_id"]
    wait_step(workspace, run_id, 2)
    (away / "model.safetensors").unlink()
    ended = wait_end(workspace, run_id)
    run = workspace.runs.locate(run_id)
    assert ended["status"] == "failed" and ended["error"]["code"] in ("training_failed", "merge_failed"), ended
    assert run.file("final/adapter_model.safetensors").is_file() and ended["last_checkpoint"]
    assert not run.file("merged").exists() and not run.file(".merged.partial").exists()


def test_a_checkpoint_without_its_optimizer_is_not_resumed_and_the_way_on_is_named(workspace, tmp_path):
    run_id = workspace.runs.start(body("dpo", tmp_path, max_steps=400))["run_id"]
    wait_step(workspace, run_id, 1)
    workspace.runs.pause(run_id)
    assert wait_end(workspace, run_id)["status"] == "paused"
    run = workspace.runs.locate(run_id)
    (checkpoint,) = run.path.glob("checkpoint-*")
    (checkpoint / "optimizer.pt").unlink()
    with pytest.raises(BashGymError) as refused:
        workspace.runs.resume(run_id)
    assert "optimizer.pt is missing" in refused.value.message and str(checkpoint) in refused.value.hint
    shown = workspace.runs.start({**body("dpo", tmp_path), "base_model": str(checkpoint)}, dry_run=True)["warnings"]
    assert any(warning["code"] == "checkpoint_as_model" and "optimizer" in warning["message"] for warning in shown)


# -- GGUF ----------------------------------------------------------------------------------------------------------------

CONVERTER = """
import argparse, json, os, pathlib, sys
import gguf
from safetensors.numpy import load_file
parser = argparse.ArgumentParser()
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("--outfile")
parser.add_argument("--outtype", choices=["f32", "f16", "bf16", "q8_0"])
args = parser.parse_args()
if any(name in os.environ for name in ("HF_TOKEN", "BASHGYM_TEST_TOKEN")):
    sys.exit("a converter needs no token")
fault = os.environ.get("DOUBLE_FAULT", "")
if fault == "fails":
    sys.exit("BPE pre-tokenizer was not recognized")
if fault == "writes nothing":
    sys.exit(0)
tokenizer = json.loads((args.model / "tokenizer.json").read_text())
vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
vocab += [token["content"] for token in tokenizer["added_tokens"] if token["content"] not in vocab]
writer = gguf.GGUFWriter(args.outfile, "qwen2")
writer.add_token_list(vocab)
writer.add_eos_token_id(0 if fault == "wrong eos" else 2)
if fault != "no template":
    writer.add_chat_template((args.model / "chat_template.jinja").read_text())
if fault != "no tensors":
    for name, tensor in load_file(args.model / "model.safetensors").items():
        writer.add_tensor(name, tensor.astype("float16"))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
if fault == "torn":
    with open(args.outfile, "r+b") as handle:
        handle.truncate(2000)
"""
QUANTIZER = '#!/bin/sh\ncase $3 in Q4_K_M) cp "$1" "$2" ;; *) echo "invalid ftype \'$3\'" >&2; exit 1 ;; esac\n'


@pytest.fixture
def llama(tmp_path):
    """A llama.cpp folder whose two programs take the arguments of the real ones."""
    folder = tmp_path / "llama.cpp"
    (folder / "build/bin").mkdir(parents=True)
    (folder / gguf.CONVERTER).write_text(CONVERTER)
    quantizer = folder / "build/bin" / gguf.QUANTIZER
    quantizer.write_text(QUANTIZER)
    quantizer.chmod(quantizer.stat().st_mode | stat.S_IEXEC)
    return folder


@pytest.fixture
def export(base, tmp_path, llama):
    def run(quantization="q4_k_m", folder=llama):
        tools = gguf.find_tools(str(folder))
        target = tmp_path / "gguf"
        return gguf.export(base, target, name="m", quantization=quantization, tools=tools, python=sys.executable)

    return run


def test_an_export_is_quantised_checked_and_comes_with_the_training_template(export, tmp_path, base):
    facts = export()
    assert facts["file"] == "gguf/m-q4_k_m.gguf" and facts["warnings"] == [] and facts["tensors"] > 40
    assert sorted(path.name for path in (tmp_path / "gguf").iterdir()) == ["Modelfile", "m-q4_k_m.gguf"]
    text = (tmp_path / "gguf/Modelfile").read_text()
    assert text.startswith("FROM ./m-q4_k_m.gguf\nTEMPLATE") and 'PARAMETER stop "<|im_end|>"' in text
    assert "<|im_start|>user\n{{ .Content }}<|im_end|>\n" in text and text.count("<|im_start|>assistant\n") == 2


def test_without_a_quantizer_the_plain_export_is_made_and_said(export, llama, monkeypatch):
    (llama / "build/bin" / gguf.QUANTIZER).unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    facts = export()
    assert facts["type"] == "f16" and "llama-quantize" in facts["warnings"][0]


@pytest.mark.parametrize(("fault", "words"), [("no template", "TEMPLATE"), ("wrong eos", "stop <|im_end|>")])
def test_what_a_converter_loses_is_a_warning_with_the_way_out(export, monkeypatch, fault, words):
    monkeypatch.setenv("DOUBLE_FAULT", fault)
    (warning,) = export()["warnings"]
    assert words in warning


@pytest.mark.parametrize("fault", ["fails", "writes nothing", "no tensors", "torn"])
def test_an_unsound_export_is_a_typed_failure_that_leaves_nothing(export, monkeypatch, tmp_path, fault):
    monkeypatch.setenv("DOUBLE_FAULT", fault)
    with pytest.raises(BashGymError) as refused:
        export()
    assert refused.value.code == "export_failed"
    assert not (tmp_path / "gguf").exists() and not list(tmp_path.glob(".gguf-*"))


def test_a_failed_export_keeps_the_older_one(export, monkeypatch, tmp_path):
    export("f16")
    with pytest.raises(BashGymError, match="invalid ftype"):
        export("q9_z")
    assert (tmp_path / "gguf/m-f16.gguf").is_file()


def test_a_tool_sees_no_secret(export, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("BASHGYM_TEST_TOKEN", "x")
    export()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A finished deployable run."""
    folder = tmp_path_factory.mktemp("gguf")
    from bashgym.workspace import Workspace

    workspace = Workspace.open(Settings.from_env({"BASHGYM_DIR": str(folder / "home")}, folder))
    run_id = workspace.runs.start(body("dpo", folder, max_steps=2, artifact_retention="deployable"))["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    return SimpleNamespace(folder=folder, id=run_id, run=workspace.runs.locate(run_id))


def _export_command(deployed, **env):
    command = [sys.executable, "-m", "bashgym.cli.main", "training", "export-gguf", deployed.id, "--json"]
    env = {**os.environ, "BASHGYM_DIR": str(deployed.folder / "home"), **env}
    done = subprocess.run(command, cwd=deployed.folder, env=env, capture_output=True, text=True, timeout=120)
    text = done.stdout or done.stderr[done.stderr.index("{") :]
    return done.returncode, json.loads(text)


def test_the_export_command_without_llama_cpp_is_a_typed_refusal(deployed):
    code, doc = _export_command(deployed, BASHGYM_LLAMA_CPP="")
    assert code == 1 and doc["detail"]["code"] == "export_unavailable" and "BASHGYM_LLAMA_CPP" in doc["detail"]["hint"]


def test_the_export_command_puts_the_file_into_the_run_and_its_profile(deployed, llama):
    code, doc = _export_command(deployed, BASHGYM_LLAMA_CPP=str(llama))
    assert code == 0, doc
    assert deployed.run.file(doc["file"]).stat().st_size == doc["size_bytes"]
    (entry,) = json.loads(deployed.run.file("model_profile.json").read_text())["artifacts"]["gguf_exports"]
    assert entry["sha256"] == doc["sha256"] and len(doc["sha256"]) == 64


@pytest.mark.parametrize(("fault", "words"), [("", "finished"), ("fails", "GGUF export failed: export_failed")])
def test_a_run_exports_by_itself_where_llama_cpp_is_and_never_fails_by_it(
    workspace, tmp_path, llama, monkeypatch, fault, words
):
    from dataclasses import replace

    from bashgym.workspace import Workspace

    monkeypatch.setenv("BASHGYM_LLAMA_CPP", str(llama))
    monkeypatch.setenv("DOUBLE_FAULT", fault)
    monkeypatch.setenv("BASHGYM_DIR", str(workspace.settings.home))
    runs = Workspace.open(replace(workspace.settings, llama_cpp=str(llama))).runs
    started = runs.start(body("dpo", tmp_path, max_steps=2, artifact_retention="deployable"))
    assert "gguf_not_exported" not in {warning["code"] for warning in started["warnings"]}
    ended = wait_end(workspace, started["run_id"])
    assert ended["status"] == "completed" and words in ended["message"], ended
    assert workspace.runs.locate(started["run_id"]).file("gguf/Modelfile").is_file() == (not fault)
