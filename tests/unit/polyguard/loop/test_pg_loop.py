"""The gate refuses each single thing that is wrong; a model is activated and taken back; a bundle holds what it says."""

import json
import subprocess
from pathlib import Path

import pytest

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from polyguard.cli import acceptance_gate, activate_sweep_model, deploy_training_space
from polyguard.loop import active, gate
from polyguard.loop.deploy import run_id_of

REPORTS = Path("outputs/reports")
GRPO, SFT = Path("checkpoints/grpo_adapter"), Path("checkpoints/sft_adapter")


def put(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return digest_file(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which all holds. Weights are bytes here: the gate hashes them, it does not load them."""
    monkeypatch.chdir(tmp_path)
    for stage, place in (("sft", SFT), ("grpo", GRPO)):
        sha = put(place / "adapter_model.safetensors", f"weights of {stage}".encode())
        body = {
            "status": "ok", "backend": "trl_transformers", "artifact_path": place.as_posix(), "weight_delta_norm": 1.5,
            "artifact_sha256": {"adapter_model.safetensors": sha}, "steps_completed": 9, "exploit_rate": 0.01,
            "legality_rate": 0.99, "model_id": "m", "holdout_reward": 0.7,
        }  # fmt: skip
        put(REPORTS / f"{stage}_trl_run.json", body)
    merged = put(Path("checkpoints/merged/model.safetensors"), b"merged")
    body = {"output_dir": "checkpoints/merged", "files": {"model.safetensors": merged}, "greedy_agreement": 1.0}
    put(REPORTS / "merge_report.json", body)
    sha = digest_file(GRPO / "adapter_model.safetensors")
    body = {
        "model_source": "grpo_adapter",
        "artifact_path": GRPO.as_posix(),
        "artifact_sha256": sha,
        "samples": 1,
        "rows": [{}],
    }
    put(REPORTS / "postsave_inference.json", body)
    body = {"improved": True, "eval_split": "test", "n": 120, "metrics": {"avg_reward": {"ci_low": 0.02}}}
    put(REPORTS / "improvement_report.json", body)
    rows = put(Path("data/processed/a.jsonl"), b"{}\n")
    put(REPORTS / "training_corpus_report.json", {"holdout_overlap": 0, "sha256": {"data/processed/a.jsonl": rows}})
    return tmp_path


def refused(root):
    return {check.name for check in gate.run_checks(root) if not check.passed}


def test_a_folder_in_which_all_holds_is_accepted(folder, capsys):
    assert refused(folder) == set()
    assert acceptance_gate.main([]) == 0 and "accepted" in capsys.readouterr().out
    found = json.loads(Path("docs/results/acceptance_gate.json").read_text())
    assert found["passed"] and found["artifact_sha256"] == digest_file(GRPO / "adapter_model.safetensors")


CHANGES = [
    ("sft_trl_run.json", {"backend": "fallback_sklearn"}, {"sft_report", "no_fallback"}),
    ("sft_trl_run.json", {"weight_delta_norm": 0.0}, {"weights_moved"}),
    ("grpo_trl_run.json", {"status": "failed"}, {"grpo_report"}),
    ("grpo_trl_run.json", {"artifact_path": ""}, {"grpo_report", "artifacts"}),
    ("grpo_trl_run.json", {"steps_completed": 0}, {"weights_moved"}),
    ("grpo_trl_run.json", {"weight_delta_norm": float("nan")}, {"weights_moved"}),
    ("grpo_trl_run.json", {"exploit_rate": 0.06}, {"behaviour"}),
    ("grpo_trl_run.json", {"legality_rate": 0.89}, {"behaviour"}),
    ("grpo_trl_run.json", {"legality_rate": None}, {"behaviour"}),
    ("postsave_inference.json", {"model_source": "fallback_policy"}, {"postsave", "no_fallback"}),
    ("postsave_inference.json", {"artifact_sha256": "0" * 64}, {"postsave"}),
    ("postsave_inference.json", {"samples": 2}, {"postsave"}),
    ("improvement_report.json", {"improved": "true"}, {"improvement"}),
    ("improvement_report.json", {"eval_split": "train"}, {"improvement"}),
    ("improvement_report.json", {"n": 99}, {"improvement"}),
    ("improvement_report.json", {"metrics": {"avg_reward": {"ci_low": 0.0}}}, {"improvement"}),
    ("training_corpus_report.json", {"holdout_overlap": 1}, {"corpus"}),
    ("merge_report.json", {"greedy_agreement": 0.94}, {"merge"}),
    ("merge_report.json", {"note": "/home/somebody/model"}, {"relative_paths"}),
]


@pytest.mark.parametrize(("name", "change", "names"), CHANGES)
def test_each_single_change_is_found(folder, name, change, names):
    body = json.loads((REPORTS / name).read_text())
    put(REPORTS / name, {**body, **change})
    assert refused(folder) == names


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CHANGES}))
def test_a_report_that_is_gone_or_broken_is_found(folder, name):
    for broken in (b"", b"[]", b'{"a": '):
        put(REPORTS / name, broken)
        assert refused(folder)
    (REPORTS / name).unlink()
    assert refused(folder) and acceptance_gate.main(["--json"]) == 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (SFT / "adapter_model.safetensors", "artifacts"),
        (GRPO / "adapter_model.safetensors", "artifacts"),
        (Path("checkpoints/merged/model.safetensors"), "merge"),
        (Path("data/processed/a.jsonl"), "corpus"),
    ],
)
def test_a_flipped_byte_in_a_file_is_found(folder, path, name):
    path.write_bytes(b"X" + path.read_bytes()[1:])
    assert name in refused(folder)


def test_links_are_asked_for_only_where_they_are_wanted(folder, monkeypatch):
    monkeypatch.setenv(gate.LINKS, "true")
    assert refused(folder) == {"submission_links"}
    put(folder / "README.md", b"https://huggingface.co/spaces/o/s and https://huggingface.co/o/m")
    assert refused(folder) == set()


def test_a_model_is_activated_in_the_order_of_loading_and_taken_back(folder, capsys):
    assert active.resolve_model().kind == "grpo_adapter"
    assert (
        activate_sweep_model.main(["--source", "top-level", "--run-id", "one", "--preferred-artifact", "sft_adapter"])
        == 0
    )
    assert active.resolve_model().kind == "sft_adapter"
    assert activate_sweep_model.main(["--source", "top-level", "--run-id", "two", "--label", "second"]) == 0
    manifest = json.loads(active.MANIFEST.read_text())
    assert manifest == json.loads(active.MIRROR.read_text()) and manifest["previous"]["run_id"] == "one"
    assert [row["kind"] for row in manifest["load_order"]] == ["grpo_adapter", "merged_sft", "sft_adapter"]
    assert activate_sweep_model.main(["--rollback"]) == 0 and active.resolve_model().kind == "sft_adapter"
    (SFT / "adapter_model.safetensors").write_bytes(b"other")
    assert active.resolve_model().kind == "grpo_adapter", "what is not as it was activated is not used"


def test_what_the_gate_refused_is_activated_only_by_force(folder, capsys):
    put(REPORTS / "improvement_report.json", {})
    assert acceptance_gate.main([]) == 1
    asked = ["--source", "top-level", "--run-id", "one"]
    assert activate_sweep_model.main(asked) == 1 and "improvement" in capsys.readouterr().err
    assert activate_sweep_model.main([*asked, "--force"]) == 0
    assert activate_sweep_model.main(["--run-id", "../up"]) in (1, 2)
    assert activate_sweep_model.main(["--run-id", "none"]) == 1 and activate_sweep_model.main([]) == 2


def test_run_ids_are_as_the_documents_have_them():
    assert run_id_of("Qwen/Qwen2.5-0.5B-Instruct") == "qwen-qwen2-5-0-5b-instruct"


def test_a_bundle_says_by_digest_what_is_in_it_and_runs_what_was_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    asked = [
        "--repo-id",
        "o/r",
        "--artifact-repo-id",
        "o/a",
        "--hardware",
        "a10g-large",
        "--model-sweep",
        "Qwen/A,Qwen/B'; ls",
    ]
    assert deploy_training_space.main([*asked, "--sft-epochs", "2", "--bundle-only"]) == 0
    folder = Path("outputs/space_bundle")
    found = json.loads((folder / "bundle.json").read_text())
    assert all(digest_file(folder / name) == sha for name, sha in found["files"].items())
    assert {"Dockerfile", "run_training.sh", "src/polyguard/env/engine.py", "scripts/train_grpo_trl.py"} <= set(
        found["files"]
    )
    text = (folder / "run_training.sh").read_text()
    assert "--epochs 2" in text and subprocess.run(["sh", "-n", folder / "run_training.sh"]).returncode == 0
    assert not [p for p in folder.rglob("*") if p.is_file() and b"hf_secret" in p.read_bytes()]
    assert "'Qwen/B'\"'\"'; ls'" in text, "a name is one word for the shell"


@pytest.mark.parametrize("wrong", [["--repo-id", "no"], ["--model-sweep", ","], ["--model-sweep", "a/b,A/B"]])
def test_a_bundle_that_makes_no_sense_is_refused(tmp_path, monkeypatch, capsys, wrong):
    monkeypatch.chdir(tmp_path)
    asked = ["--repo-id", "o/r", "--artifact-repo-id", "o/a", "--model-sweep", "q/m", "--bundle-only"]
    assert deploy_training_space.main([*asked, *wrong]) == 2 and not Path("outputs").exists()


def test_without_a_token_nothing_is_sent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    asked = ["--repo-id", "o/r", "--artifact-repo-id", "o/a", "--model-sweep", "q/m"]
    assert deploy_training_space.main(asked) == 1 and "hub_unavailable" in capsys.readouterr().err


def test_a_broken_tree_is_judged_and_never_raises(tmp_path):
    checks = gate.run_checks(tmp_path)
    assert {check.name for check in checks if check.passed} == {
        "knowledge",
        "determinism",
        "openenv",
        "relative_paths",
        "no_fallback",
        "submission_links",
    }
    assert all(check.remediation for check in checks if not check.passed)
    with pytest.raises(BashGymError):
        active.activate(source="sweep", run_id="none", preferred="merged")
