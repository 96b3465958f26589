"""Each rule of a record is broken once, and is named by row and field; encoding and preflight see the same rows."""

import pytest

from bashgym.data.contracts import check_dataset
from bashgym.data.preflight import DatasetQuery, check
from bashgym.data.sessions.contract import TAG, confident, faults

from .session_cases import record, write_rows

SPAN = {"start": 0, "end": 14}
FIELDS = [*record()]


def test_the_case_record_is_valid_and_has_seventeen_fields():
    assert len(FIELDS) == 17 and faults(record()) == []


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_required(field):
    for value in (None, "absent"):
        row = record()
        row[field] = None
        if value:
            del row[field]
        assert [fault.field for fault in faults(row)] == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("record_id", "xyz"),
        ("hinted_context", record()["original_context"]),
        ("original_context", f"{TAG} x"),
        ("hinted_context", f"{TAG} another hint"),
        ("target_text", record()["hint_text"]),
        ("target_text", f"{TAG} ls"),
        ("target_text", "cat note0.txt"),
        ("hint_text", "Write cat notes0.txt."),
        ("target_type", "poem"),
        ("target_span", {"start": 1, "end": 14}),
        ("target_span", {"start": 0, "end": 13}),
        ("loss_mask", {"policy": "everything", "target_span": SPAN}),
        ("loss_mask", {"policy": "target_span_only"}),
        ("reader_confidence", 1.2),
        ("reader_confidence", True),
        ("quality_score", float("nan")),
        ("step_index", -1),
        ("source_metadata", []),
        ("target_text", 7),
        ("target_text", "  "),
        ("original_context", "x" * 1_000_001),
    ],
)
def test_a_broken_rule_is_named_by_its_field(field, value):
    assert field in {fault.field for fault in faults(record(**{field: value}))}


def test_the_report_names_row_and_field_and_counts_the_valid_rows(tmp_path):
    path = write_rows(tmp_path / "r.jsonl", [record(0), record(1, reader_confidence=2), record(2)])
    report = check_dataset(path, "session_distillation")
    assert (report.total_examples, report.valid_examples, report.is_valid) == (3, 2, False)
    assert [(issue.line, issue.field) for issue in report.issues] == [(2, "reader_confidence")]
    assert [row.row for row in confident(path, 0.0)] == [1, 3]


def query(path, tiny_folder, **more):
    options = {"session_distillation_min_confidence": 0.6, **more.pop("options", {})}
    return DatasetQuery(path, "session_distillation", tiny_folder, max_seq_length=160, options=options, **more)


def found(report):
    return {finding.code: finding for finding in report.findings}


def test_preflight_counts_the_confident_rows_and_their_target_tokens(tmp_path, tiny_folder, bundle):
    rows = [record(i, reader_confidence=0.5 if i < 3 else 0.78) for i in range(10)]
    report = check(query(write_rows(tmp_path / "r.jsonl", rows), tiny_folder))
    assert (report.rows, report.valid_rows, report.train_rows) == (10, 7, 7)
    assert not report.blocking and found(report)["low_confidence_rows"].rows == (1, 2, 3)
    assert report.tokens.supervised == sum(len(bundle.encode(row["target_text"])) + 1 for row in rows[3:])


def test_no_confident_row_blocks(tmp_path, tiny_folder):
    path = write_rows(tmp_path / "r.jsonl", [record(i, reader_confidence=0.5) for i in range(4)])
    assert "no_confident_record" in check(query(path, tiny_folder)).blocking


def test_a_target_that_does_not_fit_drops_its_row_and_the_mend_works(tmp_path, tiny_folder):
    long = " ".join(f"cat file{i}" for i in range(60))
    path = write_rows(tmp_path / "r.jsonl", [*(record(i) for i in range(3)), record(3, target_text=long)])
    report = check(query(path, tiny_folder))
    finding = found(report)["target_does_not_fit"]
    assert report.valid_rows == 3 and finding.rows == (4,) and finding.severity == "warning"
    length = int(finding.mend.split("max_seq_length ")[1].split()[0])
    for enough, rows in ((length, 4), (length - 1, 3)):
        again = DatasetQuery(path, "session_distillation", tiny_folder, max_seq_length=enough)
        assert check(again).valid_rows == rows
    alone = check(query(write_rows(tmp_path / "one.jsonl", [record(3, target_text=long)]), tiny_folder))
    assert "target_does_not_fit" in alone.blocking


def test_split_warnings(tmp_path, tiny_folder):
    rows = [record(i, session_id="same", source_metadata={"split": "validation"}) for i in range(6)]
    codes = found(check(query(write_rows(tmp_path / "r.jsonl", rows), tiny_folder, eval_split=0.3)))
    assert {"session_in_both_splits", "validation_rows_trained"} <= codes.keys()
    rows = [record(i, source_metadata={"split": "train"}) for i in range(6)]
    codes = found(check(query(write_rows(tmp_path / "r.jsonl", rows), tiny_folder, eval_split=0.3)))
    assert not {"session_in_both_splits", "validation_rows_trained"} & codes.keys()
