import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.models import tiny
from bashgym.models.catalog import resolve


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings.from_env({"BASHGYM_DIR": str(tmp_path_factory.mktemp("home"))}, tmp_path_factory.mktemp("cwd"))


def _refused(name, settings):
    with pytest.raises(BashGymError) as caught:
        resolve(name, settings)
    return caught.value


def test_tiny_is_built_once_with_the_same_bytes_everywhere(settings, tmp_path):
    other = Settings.from_env({"BASHGYM_DIR": str(tmp_path)}, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        found = {
            ref.digest
            for ref in pool.map(lambda s: resolve("bashgym/tiny-qwen2", s), [settings, settings, other, other])
        }
    assert len(found) == 1
    assert len(list((tmp_path / "models").iterdir())) == 1, "no half-built folder is left"


def test_a_copy_by_path_has_the_same_digest_and_a_changed_byte_another(settings, tmp_path):
    ref = resolve("bashgym/tiny-qwen2", settings)
    copy = tmp_path / "copy"
    shutil.copytree(ref.path, copy)
    assert resolve(str(copy), settings).digest == ref.digest
    (copy / "tokenizer_config.json").write_text("{}")
    assert resolve(str(copy), settings).digest != ref.digest
    assert 1_000_000 < ref.n_parameters < 3_000_000
    assert ref.n_parameters == tiny.N_PARAMETERS


def test_pickled_weights_are_refused(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    error = _refused(str(tmp_path), settings)
    assert error.code == "model_unsafe" and "pytorch_model.bin" in error.message


def test_an_lfs_pointer_and_a_cut_file_are_named(settings, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 752801\n")
    assert "LFS" in _refused(str(tmp_path), settings).message
    whole = (resolve("bashgym/tiny-qwen2", settings).path / "model.safetensors").read_bytes()
    weights.write_bytes(whole[:-7])
    assert "promises" in _refused(str(tmp_path), settings).message


@pytest.mark.parametrize("name", ["no/such-model", "nowhere", "run_20260101_000000_deadbeef", "../etc", ""])
def test_what_is_not_there_is_model_missing(settings, name, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if name == "../etc":
        name = "../etc-that-is-not-there"
    assert _refused(name, settings).code in ("model_missing", "model_incomplete")


def test_a_hub_snapshot_is_found_by_its_revision(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    commit = "a" * 40
    root = tmp_path / "models--org--name"
    shutil.copytree(resolve("bashgym/tiny-qwen2", settings).path, root / "snapshots" / commit)
    (root / "refs").mkdir()
    (root / "refs/main").write_text(commit)
    ref = resolve("org/name", settings)
    assert (ref.source, ref.revision) == ("hub", commit)
    assert resolve(f"org/name@{commit}", settings).digest == ref.digest
    assert _refused("org/name@" + "b" * 40, settings).code == "model_missing"
    assert os.fspath(ref.path).startswith(str(tmp_path))


def _adapter(folder, base, tensors):
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base), "peft_type": "LORA"}))
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in tensors.items()},
        str(folder / "adapter_model.safetensors"),
    )
    return str(folder)


def test_an_adapter_is_resolved_on_its_base(settings, tmp_path):
    base = resolve("bashgym/tiny-qwen2", settings)
    ref = resolve(_adapter(tmp_path / "a", base.path, {"layers.0.lora_A.weight": (4, 128)}), settings)
    assert ref.path == base.path and ref.adapter_path == tmp_path / "a" and ref.digest != base.digest


def test_an_adapter_with_embeddings_of_another_size_names_both_sizes(settings, tmp_path):
    base = resolve("bashgym/tiny-qwen2", settings)
    error = _refused(
        _adapter(tmp_path / "a", base.path, {"base_model.model.model.embed_tokens.weight": (700, 128)}), settings
    )
    assert "700" in error.message and "640" in error.message and "embed_tokens" in error.message


def test_an_adapter_on_itself_is_refused(settings, tmp_path):
    folder = tmp_path / "a"
    assert _refused(_adapter(folder, folder, {"lora_A.weight": (4, 128)}), settings).code == "model_incomplete"
