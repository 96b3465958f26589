"""The strict look at preference pairs: every code, the recomputed hash, exit statuses."""

import hashlib
import json

import pytest

from bashgym.cli.main import main
from bashgym.core.canonical import canonical_json
from bashgym.core.errors import BashGymError
from bashgym.data.pair_validation import SCHEMA, prompt_hash, validate_pairs

WHOLE = {
    "pair_id": "p1",
    "prompt": "list hidden files",
    "chosen": "ls -A",
    "rejected": "ls -l",
    "prompt_hash": hashlib.sha256(b"list hidden files").hexdigest()[:16],
    "metadata": {
        "pair_generation_method": "trace_pair",
        "chosen_trace_id": "t1",
        "rejected_trace_id": "t2",
        "label_source": "verifier",
        "chosen_verification_score": 1.0,
        "rejected_verification_score": 0,
        "task_family": "list",
        "split": "train",
        "decontamination_status": "clean",
    },
}
METADATA = {
    "missing_saved_prompt_hash": "prompt_hash",
    "missing_pair_generation_method": "pair_generation_method",
    "missing_chosen_trace_provenance": "chosen_trace_id",
    "missing_rejected_trace_provenance": "rejected_trace_id",
    "missing_label_strength": "label_source",
    "missing_domain_or_task_family": "task_family",
    "missing_split_metadata": "split",
    "missing_decontamination_metadata": "decontamination_status",
}


def without(*names):
    metadata = {k: v for k, v in WHOLE["metadata"].items() if k not in names}
    return {**{k: v for k, v in WHOLE.items() if k not in names}, "metadata": metadata}


def found(report):
    return {finding["code"]: finding for finding in report["findings"]}


def test_a_whole_pair_passes_the_strict_look(write):
    report = validate_pairs(write(WHOLE), strict=True)
    assert report["ok"] and report["findings"] == [] and report["schema_version"] == SCHEMA
    assert (report["total_records"], report["trainable_records"], report["fail_count"]) == (1, 1, 0)


@pytest.mark.parametrize(("code", "name"), METADATA.items())
def test_missing_metadata_warns_and_fails_only_when_strict(write, code, name):
    path = write(WHOLE, without(name))
    lenient, strict = validate_pairs(path), validate_pairs(path, strict=True)
    assert lenient["ok"] and found(lenient)[code]["level"] == "warn"
    assert not strict["ok"] and found(strict)[code]["level"] == "fail" and found(strict)[code]["rows"] == [2]
    assert found(strict).keys() == {code}


def test_one_score_is_enough_and_zero_is_a_score(write):
    assert validate_pairs(write(without("chosen_verification_score")), strict=True)["ok"]
    lacking = without("chosen_verification_score", "rejected_verification_score")
    assert "missing_quality_scores" in found(validate_pairs(write(lacking)))


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (without("pair_id"), "missing_pair_id"),
        (without("prompt"), "missing_prompt"),
        ({**WHOLE, "prompt": " "}, "missing_prompt"),
        (without("chosen"), "missing_chosen"),
        ({**WHOLE, "rejected": ""}, "missing_rejected"),
        ({**WHOLE, "rejected": " ls  -A"}, "identical_chosen_rejected"),
        ({**WHOLE, "prompt_hash": "0" * 16}, "prompt_hash_mismatch"),
        ({**WHOLE, "prompt": "another prompt"}, "prompt_hash_mismatch"),
        ('["not", "an", "object"]', "invalid_record_type"),
        ('{"prompt": "p", ', "json_invalid"),
        ({**WHOLE, "chosen": 7}, "mixed_types"),
    ],
)
def test_what_fails_in_any_mode(write, row, code):
    report = validate_pairs(write(WHOLE, row, {**WHOLE, "pair_id": "p3"}))
    assert not report["ok"]
    finding = found(report)[code]
    assert finding["level"] == "fail" and finding["rows"] == [2]
    assert report["trainable_records"] >= 2 and report["total_records"] == 3


def test_every_row_is_named_where_no_row_has_a_column(write):
    report = validate_pairs(write(without("rejected"), without("rejected")))
    assert found(report)["missing_rejected"]["rows"] == [1, 2]


def test_columns_count_as_the_trainer_reads_them(write):
    renamed = {("chosen_response" if k == "chosen" else k): v for k, v in WHOLE.items()}
    assert validate_pairs(write(renamed), strict=True)["ok"]
    # In a file whose first rows say chosen, the trainer does not look at chosen_response.
    assert found(validate_pairs(write(WHOLE, renamed)))["missing_chosen"]["rows"] == [2]


def test_an_extreme_length_ratio_warns_even_when_strict(write):
    row = {**WHOLE, "chosen": "x" * 31, "rejected": "y" * 10}
    path = write(row)
    assert found(validate_pairs(path, strict=True))["extreme_length_ratio"]["level"] == "warn"
    assert validate_pairs(path, strict=True)["ok"]
    assert "extreme_length_ratio" not in found(validate_pairs(path, max_length_ratio=3.1))
    with pytest.raises(BashGymError):
        validate_pairs(path, max_length_ratio=0.5)


def test_the_hash_of_a_conversation_is_that_of_its_canonical_turns(write):
    turns = [{"role": "user", "content": "list"}]
    digest = hashlib.sha256(canonical_json(turns)).hexdigest()[:16]
    assert prompt_hash(turns) == digest
    chat = {"chosen": [*turns, {"role": "assistant", "content": "ls -A"}]}
    chat["rejected"] = [*turns, {"role": "assistant", "content": "ls"}]
    row = {**without("prompt"), **chat, "prompt_hash": digest}
    assert validate_pairs(write(row), strict=True)["ok"]


@pytest.mark.parametrize(("row", "strict", "status"), [(WHOLE, True, 0), (without("split"), False, 0)])
def test_an_acceptable_file_exits_0(write, capsys, row, strict, status):
    assert run(["training", "dpo-pairs", "validate", str(write(row)), "--json", *["--strict"][: int(strict)]]) == status
    assert json.loads(capsys.readouterr().out)["ok"]


def test_an_unacceptable_file_exits_2_and_names_the_line(write, capsys):
    path = str(write(WHOLE, without("split")))
    assert run(["training", "dpo-pairs", "validate", path, "--strict"]) == 2
    assert "row 2" in capsys.readouterr().out


def run(argv):
    try:
        return main(argv) or 0
    except SystemExit as stop:
        return stop.code or 0
