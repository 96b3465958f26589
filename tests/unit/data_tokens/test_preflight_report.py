"""`check` over real files: the arithmetic, the splits, what blocks and what can be forced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_folder import MARKED, PLAIN, write_model

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.data.preflight import DatasetQuery, PreflightReport, blocking, check, steps
from bashgym.data.types import Finding, Severity


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def report(folder: Path, rows: list[dict[str, Any]], template: str = MARKED, **query: Any) -> PreflightReport:
    model = write_model(folder / "m", template)
    options: dict[str, Any] = {"max_seq_length": 256} | query
    return check(DatasetQuery(write(folder / "train.jsonl", rows), model_dir=model, **options))


def named(found: PreflightReport, code: str) -> Finding:
    return next(finding for finding in found.findings if finding.code == code)


def codes(found: PreflightReport) -> set[str]:
    return {finding.code for finding in found.findings}


ROWS = [chat(f"question {n}", f"answer {n}") for n in range(20)]


def test_a_good_dataset_blocks_nothing(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS, batch_size=4, eval_split=0.2)
    assert found.blocking == []
    assert (found.rows, found.valid_rows, found.train_rows, found.eval_rows) == (20, 20, 16, 4)
    assert (found.steps_per_epoch, found.total_steps) == (4, 4)
    assert found.sha256 == digest_file(tmp_path / "train.jsonl")
    assert found.format == "messages"
    assert found.tokens is not None and found.tokens.supervised > 0


def test_the_report_is_json_and_comes_back(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS)
    assert msgspec.json.decode(msgspec.json.encode(found), type=PreflightReport) == found


@pytest.mark.parametrize(
    ("rows", "batch", "accumulation", "processes", "epochs", "max_steps", "expected"),
    [
        (0, 1, 1, 1, 3, -1, (0, 0)),
        (0, 1, 1, 1, 3, 50, (0, 0)),
        (5, 8, 16, 1, 1, -1, (1, 1)),
        (100, 8, 1, 1, 1, -1, (13, 13)),
        (100, 8, 4, 1, 2, -1, (4, 8)),
        (100, 8, 1, 4, 1, -1, (4, 4)),
        (10, 1, 1, 1, 0.25, -1, (10, 3)),
        (10, 1, 1, 1, 9, 7, (10, 7)),
    ],
)
def test_steps_count_as_the_trainer_does(
    rows: int, batch: int, accumulation: int, processes: int, epochs: float, max_steps: int, expected: tuple[int, int]
) -> None:
    query = DatasetQuery(
        Path("x"),
        batch_size=batch,
        gradient_accumulation_steps=accumulation,
        num_processes=processes,
        num_epochs=epochs,
        max_steps=max_steps,
    )
    assert steps(query, rows) == expected


def test_too_few_rows_show_the_arithmetic(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS[:5], batch_size=8, gradient_accumulation_steps=16, eval_split=0.01)
    finding = named(found, "too_few_rows")
    assert finding.severity is Severity.ERROR
    assert "5 rows / (8 x 16)" in finding.message and "steps" in finding.message
    assert "rounds to 0" in named(found, "eval_split_rounds_to_zero").message


def test_a_part_filled_batch_that_was_meant_is_a_warning(tmp_path: Path) -> None:
    for meant in ({"max_steps": 1}, {"num_epochs": 3.0}):
        found = report(tmp_path, ROWS[:5], batch_size=8, **meant)
        assert named(found, "too_few_rows").severity is Severity.WARNING


def test_no_trainable_row_is_zero_steps_and_blocks(tmp_path: Path) -> None:
    found = report(
        tmp_path, [chat("long " * 300, "x")] * 2 + [chat("long " * 301, "x")], max_seq_length=64, max_steps=9
    )
    assert (found.train_rows, found.total_steps) == (0, 0)
    assert {"zero_supervised_tokens", "too_few_rows"} <= set(found.blocking)


@pytest.mark.parametrize(
    ("device", "code", "severity"),
    [("cpu", "packing_unavailable", "error"), ("cuda", "packing_without_kernel", "warning")],
)
def test_packing_needs_a_kernel(tmp_path: Path, device: str, code: str, severity: str) -> None:
    assert named(report(tmp_path, ROWS, packing=True, device=device), code).severity.value == severity


def test_train_rows_in_the_eval_file_are_found(tmp_path: Path) -> None:
    held_out = write(tmp_path / "eval.jsonl", [ROWS[3], chat("new", "row")])
    found = report(tmp_path, ROWS, eval_path=held_out)
    assert found.eval_rows == 2
    assert found.train_rows == 20
    overlap = [finding for finding in found.findings if "eval" in finding.message and "train" in finding.message]
    assert overlap and overlap[0].severity is not Severity.INFO


def test_without_a_model_the_contract_is_still_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", [*ROWS, {"messages": "not a list"}])
    found = check(DatasetQuery(path))
    assert found.tokens is None
    assert (found.rows, found.valid_rows) == (21, 20)
    assert found.blocking


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for query in (
        DatasetQuery(tmp_path / "none.jsonl"),
        DatasetQuery(write(tmp_path / "d.jsonl", ROWS), eval_path=tmp_path / "none.jsonl"),
    ):
        with pytest.raises(BashGymError) as caught:
            check(query)
        assert caught.value.code == "dataset_missing"


def test_a_forced_error_no_longer_blocks(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS, template=PLAIN, assistant_only_loss=True)
    assert [finding.code for finding in blocking(found)] == ["template_without_generation_markers"]
    assert blocking(found, {"template_without_generation_markers"}) == []


def test_forcing_what_no_check_finds_is_refused(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS)
    with pytest.raises(BashGymError, match="nonsense") as caught:
        blocking(found, {"nonsense"})
    assert caught.value.code == "unknown_finding"
    assert blocking(found, {"too_few_rows", "truncated_rows"}) == []
    assert blocking(found, {"memory_short"}, known={"memory_short"}) == []


def test_a_huge_row_is_named_and_bounded(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "completion": "b"},
        {"prompt": "p", "completion": "x" * 300_000},
        {"prompt": "c", "completion": "d"},
    ]
    finding = named(report(tmp_path, rows), "truncated_rows")
    assert finding.rows == (2,)
    assert "row 2" in finding.message and "length" in finding.message


def test_arguments_of_one_row_do_not_leak_into_another(tmp_path: Path) -> None:
    from bashgym.data.preview import mask_view
    from bashgym.models import tiny

    def row(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        return {"messages": turns, "tools": [tool]}

    path = write(tmp_path / "d.jsonl", [row("read", {"path": "a.py"}), row("bash", {"command": "ls", "timeout": 5})])
    view = mask_view(path, 1, write_model(tmp_path / "m", tiny.CHAT_TEMPLATE), max_seq_length=1024)
    assert '"arguments": {"path": "a.py"}}' in view["rendered"]
    assert "null" not in view["rendered"] and "bash" not in view["rendered"]


def test_preflight_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", ROWS)
    write_model(tmp_path / "m")
    code = (
        "import sys; from pathlib import Path\n"
        "from bashgym.data.preflight import *; from bashgym.data.preview import *\n"
        f"root = Path({str(tmp_path)!r})\n"
        "check(DatasetQuery(root / 'd.jsonl', model_dir=root / 'm', max_seq_length=64))\n"
        "mask_view(root / 'd.jsonl', 1, root / 'm')\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pandas', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
