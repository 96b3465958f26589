"""The commands that judge, run in an empty folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from polyguard import DISCLAIMER
from polyguard.cli import (
    benchmark_inference,
    evaluate_baselines,
    evaluate_compare_runs,
    evaluate_policy_ablations,
    run_robustness_suite,
)

REPORTS = Path("outputs/reports")


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path / "home"))


def report(name: str) -> dict[str, Any]:
    text = (REPORTS / name).read_text()
    assert str(Path.cwd()) not in text  # paths are relative
    found: dict[str, Any] = json.loads(text)
    assert found["disclaimer"] == DISCLAIMER
    return found


def test_ablations_need_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate_policy_ablations.main(["--episodes", "6"]) == 0
    found = report("grpo_ablation_report.json")
    assert found["episodes"] == 6
    assert found["policy_stacks"]["llm-only"]["status"] == "skipped"
    out, err = capsys.readouterr()
    assert "skipped" in out
    assert "graph: adds" in err


def test_json_prints_the_report_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate_baselines.main(["--episodes", "3", "--stacks", "no_change", "rules_only", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == report("baselines.json")
    assert set(printed["policy_stacks"]) == {"no_change", "rules_only"}


def test_the_agents_are_an_improvement_over_doing_nothing_and_not_the_other_way_round() -> None:
    both = ["--episodes", "30", "--baseline", "no_change", "--candidate", "agent_stack"]
    assert evaluate_compare_runs.main(both) == 0
    found = report("improvement_report.json")
    assert found["improved"] is True, found["reasons"]
    assert (found["eval_split"], found["n"]) == ("test", 30)
    swapped = ["--episodes", "30", "--baseline", "agent_stack", "--candidate", "no_change", "--output", "other.json"]
    assert evaluate_compare_runs.main(swapped) == 0
    assert json.loads(Path("other.json").read_text())["improved"] is False


def test_a_policy_is_no_improvement_over_itself() -> None:
    assert evaluate_compare_runs.main(["--episodes", "6", "--baseline", "rules_only", "--candidate", "rules_only"]) == 0
    assert report("improvement_report.json")["improved"] is False


def test_robustness_and_inference_write_their_reports() -> None:
    assert run_robustness_suite.main(["--episodes", "4", "--policy", "rules_only"]) == 0
    assert len(report("robustness_report.json")["changes"]) == 6
    assert benchmark_inference.main(["--episodes", "3", "--runs", "2", "--provider", "stack"]) == 0
    assert report("inference_benchmark.json")["policy"] == "agent_stack"


@pytest.mark.parametrize(
    ("main", "argv"),
    [
        (evaluate_policy_ablations.main, ["--episodes", "0"]),
        (evaluate_compare_runs.main, ["--baseline", "expert", "--candidate", "no_change"]),
        (benchmark_inference.main, ["--provider", "stack", "--model", "nobody"]),
        (benchmark_inference.main, ["--provider", "stack", "--runs", "0"]),
        (run_robustness_suite.main, ["--policy", "no/such/model"]),
    ],
)
def test_wrong_use_is_a_typed_error_in_two_lines(
    main: Callable[[Sequence[str]], int], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) in (1, 2)
    err = capsys.readouterr().err
    assert "error [" in err
    assert "Traceback" not in err
    assert not list(REPORTS.glob("*"))
