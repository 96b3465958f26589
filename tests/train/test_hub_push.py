"""Pushing to the Hub: the official client against a local double that speaks the Hub's wire format."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.workspace import Workspace

from . import hub_double
from .conftest import wait_end
from .strategies import body

pytestmark = pytest.mark.train
TOKEN = hub_double.TOKEN


@pytest.fixture
def hub():
    with hub_double.serve() as double:
        yield double


def _environment(hub, home, **changes):
    """Without xet: the double speaks the Git LFS transfer."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "BASHGYM_"))}
    own = {"HF_ENDPOINT": hub.url if hub else "", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home / "hf")}
    return {**env, **own, "HF_TOKEN": TOKEN, "BASHGYM_DIR": str(home), "OMP_NUM_THREADS": "1", **changes}


def _bashgym(folder, env, *argv):
    command = [sys.executable, "-m", "bashgym.cli.main", *argv, "--json"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    text = done.stdout or done.stderr
    return SimpleNamespace(rc=done.returncode, doc=json.loads(text[text.index("{") :]), text=done.stdout + done.stderr)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished deployable run that pushed nothing."""
    folder = tmp_path_factory.mktemp("push")
    settings = Settings.from_env({"BASHGYM_DIR": str(folder / "home")}, folder)
    workspace = Workspace.open(settings)
    request = body("dpo", folder, max_steps=3, save_steps=3, artifact_retention="deployable")
    run_id = workspace.runs.start(request)["run_id"]
    ended = wait_end(workspace, run_id)
    assert ended["status"] == "completed", ended
    return SimpleNamespace(folder=folder, home=folder / "home", run=workspace.runs.locate(run_id), id=run_id)


def _push(trained, hub, *argv, **env):
    return _bashgym(
        trained.folder, _environment(hub, trained.home, **env), "training", "push", trained.id, "--repo", *argv
    )


def test_the_merged_model_arrives_byte_for_byte_in_a_private_repository_with_a_card(trained, hub):
    done = _push(trained, hub, "tester/model")
    assert done.rc == 0, done.text
    repo = hub.repos["tester/model"]
    assert repo["private"] is True and len(repo["commits"]) == 1 and done.doc["artifact"] == "merged"
    sent = {path.name: path.read_bytes() for path in trained.run.file("merged").iterdir() if path.name != "README.md"}
    assert {name: data for name, data in repo["files"].items() if name != "README.md"} == sent
    card = repo["files"]["README.md"].decode()
    assert "license: unknown" in card and "library_name: transformers" in card and "| Method | dpo |" in card
    assert str(trained.folder) not in card


def test_the_adapter_alone_can_be_pushed_and_names_its_base_instead_of_a_path(trained, hub):
    done = _push(trained, hub, "adapter-only", "--artifact", "adapter")
    files = hub.repos["tester/adapter-only"]["files"]
    assert done.rc == 0 and "model.safetensors" not in files
    assert files["adapter_model.safetensors"] == trained.run.file("final/adapter_model.safetensors").read_bytes()
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "bashgym/tiny-qwen2"
    everything = b"".join(data for name, data in files.items() if not name.endswith(".safetensors"))
    assert str(trained.folder).encode() not in everything


def test_public_is_only_public_in_so_many_words_and_says_so(trained, hub):
    done = _push(trained, hub, "tester/open", "--public")
    assert done.rc == 0 and hub.repos["tester/open"]["private"] is False
    assert "PUBLIC" in done.text and "tester/open" in done.text


@pytest.mark.parametrize(("there_private", "flags"), [(False, ()), (True, ("--public",))])
def test_a_repository_with_another_visibility_is_refused_untouched(trained, hub, there_private, flags):
    hub.add_repo("tester/there", there_private)
    done = _push(trained, hub, "tester/there", *flags)
    assert done.rc == 1 and done.doc["detail"]["code"] == "hub_refused"
    assert not hub.repos["tester/there"]["files"]


def test_the_token_is_in_no_record_and_no_argument_and_never_reaches_the_storage(trained, hub):
    done = _push(trained, hub, "tester/secret")
    assert done.rc == 0 and TOKEN not in done.text
    for path in [*trained.run.path.rglob("*"), *trained.home.rglob("*")]:
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    for method, path, headers, content in hub.requests:
        assert TOKEN not in path and TOKEN.encode() not in content
        assert not (method == "PUT" and "authorization" in headers), path  # all else is refused without it


def test_only_weights_tokenizer_and_config_leave_the_machine(trained, hub):
    planted = ["training_args.bin", "train.py", "training.log", "trainer_state.json", "optimizer.pt", ".netrc"]
    for name in planted:
        trained.run.file(f"merged/{name}").write_text("private")
    trained.run.file("merged/link.json").symlink_to(trained.run.file("request.json"))
    try:
        assert _push(trained, hub, "tester/clean").rc == 0
    finally:
        for name in [*planted, "link.json"]:
            trained.run.file(f"merged/{name}").unlink()
    assert not {*planted, "link.json"} & set(hub.repos["tester/clean"]["files"])


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (("GET", "/api/whoami-v2"), 401, "hub_refused"),
        (("POST", "/api/repos/create"), 403, "hub_refused"),
        (("POST", "/api/models/tester/model/commit/main"), 409, "hub_refused"),
        (("POST", "/api/models/tester/model/commit/main"), 500, "hub_unavailable"),
    ],
)
def test_what_the_hub_refuses_is_a_typed_failure_on_record(trained, hub, fault, status, code):
    hub.faults[fault] = status
    done = _push(trained, hub, "tester/model")
    assert done.rc == 1 and done.doc["detail"]["code"] == code and str(status) in done.doc["detail"]["message"]
    assert TOKEN not in done.text
    profile = json.loads(trained.run.file("model_profile.json").read_text())
    assert profile["push"]["status"] == "failed" and profile["push"]["code"] == code and not profile["hf_repo_id"]
    assert trained.run.events()[-1]["type"] == "hub-push" and trained.run.state().status == "completed"


def test_a_push_after_a_failed_one_is_done_and_pushing_the_same_again_adds_no_file(trained, hub):
    hub.faults["POST", "/api/models/tester/model/commit/main"] = 409
    assert _push(trained, hub, "tester/model").rc == 1
    hub.faults.clear()
    assert _push(trained, hub, "tester/model").rc == 0
    first = dict(hub.repos["tester/model"]["files"])
    assert _push(trained, hub, "tester/model").rc == 0 and hub.repos["tester/model"]["files"] == first
    assert json.loads(trained.run.file("model_profile.json").read_text())["hf_repo_id"] == "tester/model"


def test_without_a_token_or_a_hub_nothing_is_skipped_in_silence(trained, hub):
    none = _push(trained, hub, "tester/model", HF_TOKEN="")
    assert none.rc == 1 and none.doc["detail"]["code"] == "hub_unavailable" and "HF_TOKEN" in none.text
    offline = _push(trained, hub, "tester/model", HF_HUB_OFFLINE="1")
    assert offline.rc == 1 and offline.doc["detail"]["code"] == "hub_unavailable"
    assert not hub.repos


def test_a_missing_merged_model_fails_before_the_hub_is_asked(trained, hub):
    hidden = trained.run.file("merged").rename(trained.run.file("merged-away"))
    try:
        done = _push(trained, hub, "tester/model", "--artifact", "merged")
    finally:
        hidden.rename(trained.run.file("merged"))
    assert done.rc == 1 and done.doc["detail"]["code"] == "checkpoint_not_found" and not hub.requests


# -- with the run --------------------------------------------------------------------------------------------------------


def _start(folder, hub, *argv, **changes):
    env = _environment(hub, folder / "home")
    (folder / "config.json").write_text(json.dumps({**_sft(folder), "auto_push_hf": True, **changes}))
    dataset = str(folder / "rows.jsonl")
    flags = ("--model", "bashgym/tiny-qwen2", "--dataset-path", dataset, "--config", str(folder / "config.json"))
    return _bashgym(folder, env, "training", "start", *flags, *argv)


def _sft(folder):
    rows = [{"prompt": f"{i} plus 1?", "completion": str(i + 1)} for i in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "max_steps": 2,
        "batch_size": 4,
        "max_seq_length": 64,
        "lora_rank": 2,
        "torch_threads": 1,
        "sample_prompts": 0,
    }


def test_a_run_pushes_its_adapter_when_it_has_succeeded(tmp_path, hub):
    done = _start(tmp_path, hub, "--wait", hf_repo_name="auto")
    assert done.rc == 0 and done.doc["status"] == "completed", done.text
    assert any(w["code"] == "hub_push" and "tester/auto" in w["message"] for w in done.doc["warnings"])
    repo = hub.repos["tester/auto"]
    assert repo["private"] and "adapter_model.safetensors" in repo["files"] and "README.md" in repo["files"]
    run = tmp_path / "data" / "models" / done.doc["run_id"]
    assert json.loads((run / "model_profile.json").read_text())["hf_repo_id"] == "tester/auto"
    assert TOKEN not in done.text and not any(TOKEN.encode() in p.read_bytes() for p in run.rglob("*") if p.is_file())


def test_a_push_that_fails_leaves_the_run_completed_and_says_so(tmp_path, hub):
    hub.faults["POST", "/api/models/tester/auto/commit/main"] = 500
    done = _start(tmp_path, hub, "--wait", hf_repo_name="auto")
    assert done.doc["status"] == "completed" and "Hub push failed: hub_unavailable" in done.doc["message"], done.text
    run = tmp_path / "data" / "models" / done.doc["run_id"]
    assert (run / "final" / "adapter_model.safetensors").is_file()
    assert json.loads((run / "model_profile.json").read_text())["push"]["code"] == "hub_unavailable"


@pytest.mark.parametrize(
    ("prepare", "changes", "code", "says"),
    [
        (lambda hub: hub.add_repo("tester/x", False), {}, "hub_refused", "public"),
        (lambda hub: setattr(hub, "role", "read"), {}, "hub_refused", "only read"),
        (lambda hub: None, {"hf_upload_artifact": "merged"}, "invalid_field", "merged"),
        (lambda hub: None, {"hf_repo_name": "../x"}, "invalid_field", "repository"),
    ],
)
def test_what_would_fail_after_training_is_refused_before_it(tmp_path, hub, prepare, changes, code, says):
    prepare(hub)
    done = _start(tmp_path, hub, **{"hf_repo_name": "tester/x", **changes})
    assert done.rc == 1 and done.doc["detail"]["code"] == code and says in done.doc["detail"]["message"], done.text
    assert not list((tmp_path / "data").glob("models/*/request.json"))


def test_a_start_without_a_token_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    runs = Workspace.open(Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)).runs
    request = {**_sft(tmp_path), "base_model": "bashgym/tiny-qwen2", "dataset_path": str(tmp_path / "rows.jsonl")}
    with pytest.raises(BashGymError) as refused:
        runs.start({**request, "auto_push_hf": True, "hf_repo_name": "me/x"}, dry_run=True)
    assert refused.value.code == "hub_unavailable" and refused.value.fields == ["auto_push_hf"]


def test_a_public_push_is_a_warning_that_names_the_repository(tmp_path, hub):
    done = _start(tmp_path, hub, "--dry-run", hf_repo_name="team/open", hf_private=False)
    (warning,) = [w for w in done.doc["warnings"] if w["code"] == "hub_push_public"]
    assert "team/open" in warning["message"] and "PUBLIC" in warning["message"] and not hub.repos
