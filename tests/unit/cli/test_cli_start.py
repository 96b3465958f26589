"""`training start` and its inputs: what a config file may hold, who wins, what is refused before anything exists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bashgym.cli.inputs import MAX_CONFIG_BYTES, load_config, parse_sets
from bashgym.core.errors import BashGymError

Cli = Callable[..., Any]
TINY = "bashgym/tiny-qwen2"
START = ("training", "start", "--model", TINY, "--dataset-path")
ROWS = [
    {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]} for i in range(32)
]
SMALL = {"max_seq_length": 128, "batch_size": 4, "gradient_accumulation_steps": 1, "num_epochs": 2}


@pytest.fixture
def dataset(cli: Cli) -> str:
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("config.json").write_text(json.dumps(SMALL))
    return "train.jsonl"


def refused(code: str, call: Callable[[], object]) -> BashGymError:
    with pytest.raises(BashGymError) as error:
        call()
    assert error.value.code == code
    return error.value


def test_a_config_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    refused("file_unreadable", lambda: load_config(tmp_path / "link.json"))
    assert load_config(tmp_path / "real.json") == {}


def test_a_config_file_has_to_be_a_small_json_object(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    refused("file_missing", lambda: load_config(path))
    refused("file_unreadable", lambda: load_config(tmp_path))
    for text in ("[]", "{", "1"):
        path.write_text(text)
        refused("file_unreadable", lambda: load_config(path))
    with path.open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    refused("file_too_large", lambda: load_config(path))


@pytest.mark.parametrize(
    "field", ["strategy", "base_model", "dataset_path", "compute_target", "correlation_id", "origin", "tracking"]
)
def test_a_field_with_its_own_flag_is_refused_in_the_config_and_in_set(tmp_path: Path, field: str) -> None:
    (tmp_path / "c.json").write_text(json.dumps({field: "x"}))
    assert refused("field_has_flag", lambda: load_config(tmp_path / "c.json")).fields == [field]
    assert refused("field_has_flag", lambda: parse_sets([f"{field}=x"])).fields == [field]


def test_set_values_are_json_where_they_can_be() -> None:
    assert parse_sets(
        ["num_epochs=2", "learning_rate=1e-4", "use_lora=false", "optim=adamw_torch", "hf_repo_name=a=b"]
    ) == {
        "num_epochs": 2,
        "learning_rate": 1e-4,
        "use_lora": False,
        "optim": "adamw_torch",
        "hf_repo_name": "a=b",
    }
    refused("usage", lambda: parse_sets(["num_epochs"]))


def test_a_dry_run_checks_everything_and_leaves_nothing(cli: Cli, dataset: str) -> None:
    said = cli(
        "training",
        "start",
        "--model",
        TINY,
        "--dataset-path",
        dataset,
        "--config",
        "config.json",
        "--dry-run",
        "--json",
    )
    assert said.code == 0 and said.doc["dry_run"] is True and said.doc["preflight"]["rows"] == 32
    assert not Path("data").exists()


def test_flags_win_over_set_and_set_over_the_config(cli: Cli, dataset: str) -> None:
    Path("config.json").write_text(json.dumps({**SMALL, "checkpoint_limit": 5, "num_epochs": 3}))
    sets = ["--set", "num_epochs=4", "--set", "checkpoint_limit=6", "--checkpoint-limit", "2"]
    said = cli(*START, dataset, "--config", "config.json", *sets, "--dry-run", "--json")
    assert (said.doc["request"]["num_epochs"], said.doc["request"]["checkpoint_limit"]) == (4, 2)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--model", TINY], "missing_field"),
        (["--dataset-path", "train.jsonl"], "missing_field"),
        (["--model", TINY, "--dataset-path", "nope.jsonl"], "dataset_missing"),
        (["--model", "no/such-model", "--dataset-path", "train.jsonl"], "model_missing"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--strategy", "sftt"], "unknown_strategy"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--strategy", "world_model"], "not_direct_strategy"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--compute-target", "cloud"], "target_ambiguous"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--set", "epochs=1"], "unknown_field"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--checkpoint-limit", "99"], "invalid_field"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--tracking-context", "nope.json"], "file_missing"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--config", "nope.json"], "file_missing"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--run-id", "../x"], "invalid_field"),
        (
            [
                "--model",
                TINY,
                "--dataset-path",
                "train.jsonl",
                "--force",
                "no_such_finding",
                "--set",
                "max_seq_length=64",
            ],
            "unknown_finding",
        ),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--api-base", "http://example.com"], "api_base_refused"),
        (["--model", TINY, "--dataset-path", "train.jsonl", "--api-base", "http://127.0.0.1:9"], "api_unreachable"),
    ],
)
def test_a_start_that_cannot_be_is_refused_and_leaves_nothing(
    cli: Cli, dataset: str, args: list[str], code: str
) -> None:
    said = cli("training", "start", *args, "--json")
    assert said.code != 0 and said.doc["detail"]["code"] == code
    assert not list(Path().glob("data/models/*"))


def test_blocking_findings_refuse_and_are_all_named(cli: Cli) -> None:
    Path("bad.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n")
    said = cli("training", "start", "--model", TINY, "--dataset-path", "bad.jsonl", "--json")
    assert said.code == 1 and "assistant" in json.dumps(said.doc)


def test_the_plan_with_a_dataset_has_its_preflight(cli: Cli, dataset: str) -> None:
    said = cli("training", "plan", "--dataset-path", dataset, "--model", TINY, "--config", "config.json", "--json")
    assert said.code == 0 and said.doc["ok"] is True
    assert said.doc["preflight"]["rows"] == 32 and said.doc["estimate"]["memory_bytes"] > 0


def test_a_plan_whose_data_blocks_says_so_and_still_plans(cli: Cli, dataset: str) -> None:
    said = cli("training", "plan", "--dataset-path", dataset, "--model", TINY, "--set", "max_seq_length=4096", "--json")
    assert said.code == 0 and said.doc["ok"] is False and said.doc["preflight"]["blocking"]


def test_a_blocking_finding_makes_data_check_exit_2_unless_forced(cli: Cli, dataset: str) -> None:
    args = ["data", "check", dataset, "--model", TINY, "--set", "max_seq_length=4096", "--json"]
    said = cli(*args)
    assert said.code == 2 and said.doc["ok"] is False
    forces = [arg for code in said.doc["blocking"] for arg in ("--force", code)]
    assert cli(*args, *forces).code == 0


def test_the_preview_marks_exactly_the_answer(cli: Cli, dataset: str) -> None:
    said = cli("data", "preview", dataset, "--row", "2")
    assert said.code == 0 and "⟦a1" in said.out and "⟦q1" not in said.out
    assert cli("data", "preview", dataset, "--row", "33").code == 1


def test_a_follow_is_no_json_document(cli: Cli) -> None:
    said = cli("training", "log", "run_x", "--follow", "--json")
    assert said.code == 2 and said.doc["detail"]["code"] == "usage"


def test_a_tracking_context_is_measured_and_written(cli: Cli, dataset: str) -> None:
    from bashgym.core.canonical import digest_file

    ids = ["--workspace-id", "w", "--project-id", "p", "--experiment-id", "e", "--objective", "o", "--task-type", "qa"]
    given = [*ids, "--model", TINY, "--dataset-path", dataset, "--output", "deep/er/context.json"]
    said = cli("training", "tracking-context", "init", *given, "--json")
    assert said.code == 0
    context = json.loads(Path("deep/er/context.json").read_text())
    assert context["dataset_content_digest"] == digest_file(Path(dataset))
