"""Documents at their limits: exactly there they hold, a step beyond they do not."""

import copy
import json

import documents
import pytest
from evidence_run import RUN_ID, write_json, write_lines

from bashgym.core.canonical import digest_file
from bashgym.evals.environment_comparison import ComparisonRequest, holdout_comparison
from bashgym.evals.holdout import HoldoutRequest, holdout_gate
from bashgym.evals.wire import decode
from bashgym.evidence import recount


def changed(document, *path, to):
    made = copy.deepcopy(document)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return made


def small(n, passed=4):
    """A hold-out gate over two groups of families, `n` environments each, all of them held out but one group."""
    specs = [{**documents.SPECS[i], "id": f"e{i}", "metadata": {"task_family": f"f{i % 3}"}} for i in range(3 * n)]
    tries = [
        {"environment_id": spec["id"], "attempt_index": j, "passed": j < passed} for spec in specs for j in range(4)
    ]
    body = {"model_id": RUN_ID, "environments": specs, "attempts": tries, "holdout_fraction": 0.6}
    return holdout_gate(decode(body, HoldoutRequest))


def test_two_held_out_environments_of_two_groups_are_enough():
    document = small(1)
    assert document["split"]["n_holdout"] == 2 and recount.holdout(document) == ""
    assert recount.holdout(changed(document, "split", "holdout_groups", to=["f0"]))
    one = changed(document, "report", "per_environment", 0, to={**document["report"]["per_environment"][0], "n": 0, "c": 0,
                                                               "pass_at_k": {"1": None}})  # fmt: skip
    assert "1 held-out environments" in recount.holdout(one)


def test_a_model_that_passes_nothing_passes_no_gate():
    document = small(2, passed=0)
    document["gate"]["ship"], document["gate"]["reasons"] = True, []
    document["gate"]["thresholds"]["min_pass_at_1"] = 0.0
    assert "touches zero" in recount.holdout(document)


def test_limits_of_a_hold_out_hold_exactly():
    document = small(2)
    for path, at, over in (
        (("report", "attempt_summary", "timeout_rate"), 0.25, 0.2501),
        (("report", "missing", "rate"), 0.02, 0.0201),
        (("gate", "thresholds", "min_pass_at_1"), 1.0, 1.1),
    ):
        assert recount.holdout(changed(document, *path, to=at)) == "", path
        assert recount.holdout(changed(document, *path, to=over)), path


def test_a_hash_that_both_halves_share_is_contamination():
    document = small(2)
    held, train = document["split"]["holdout_ids"][0], document["split"]["train_ids"][0]
    shared = changed(document, "split", "hashes", held, to=document["split"]["hashes"][train])
    assert "in the training data" in recount.holdout(shared)


def compared(base, candidate, n=24, attempts=1, **more):
    """A comparison of `attempts` attempts at n environments; base and candidate say who passes."""

    def tries(passes):
        return [
            {"environment_id": f"env_{i}", "attempt_index": j, "passed": passes(i)}
            for i in range(n)
            for j in range(attempts)
        ]  # fmt: skip

    body = {"model_id": RUN_ID, "environments": documents.SPECS[:n], "base_attempts": tries(base),
            "candidate_attempts": tries(candidate), **more}  # fmt: skip
    return holdout_comparison(decode(body, ComparisonRequest))


def forced(document):
    """As if its maker had called it an improvement."""
    document["gate"] = {"ship": True, "reasons": []}
    document["comparison"]["verdict"] = "improved"
    return document


def test_a_comparison_is_judged_anew():
    better = compared(lambda i: i % 4 == 0, lambda i: i % 4 != 1)
    assert better["gate"]["ship"] and recount.comparison(better) == ""
    noise = forced(compared(lambda i: i % 4 == 0, lambda i: i % 4 == 0 or i == 1))
    assert "computed again it is inconclusive" in recount.comparison(noise)
    few = forced(compared(lambda i: False, lambda i: i < 5, n=24))
    assert "McNemar" in recount.comparison(few), "five of five, p = 0.0625"
    hidden = changed(few, "comparison", "mcnemar", to=None)
    assert "McNemar" in recount.comparison(hidden), "whether there were several attempts is seen, not said"
    equal = forced(compared(lambda i: True, lambda i: True))
    assert recount.comparison(equal)
    worse = forced(compared(lambda i: True, lambda i: False))
    assert "regressed" in recount.comparison(worse)


def test_few_families_show_nothing():
    specs = [{**spec, "metadata": {"task_family": f"f{i % 5}"}} for i, spec in enumerate(documents.SPECS)]
    five = forced(compared(lambda i: False, lambda i: True, environments=specs))
    assert "clusters" in recount.comparison(five)
    one = forced(compared(lambda i: False, lambda i: i != 3))
    one["comparison"]["per_environment"] = [{**row, "cluster": "same"} for row in one["comparison"]["per_environment"]]
    assert recount.comparison(one)


def test_later_looks_need_more():
    document = compared(lambda i: False, lambda i: i % 3 != 0)
    assert recount.comparison(document) == ""
    assert "clusters would all move one way" in recount.comparison(
        changed(document, "comparison", "gate", "looks", to=100)
    )
    for looks in (101, 0, 1.0, None):
        assert "number of looks" in recount.comparison(changed(document, "comparison", "gate", "looks", to=looks))


def test_missing_observations_of_either_side_count():
    document = compared(lambda i: i % 4 == 0, lambda i: i % 4 != 1)
    for side in ("base", "candidate"):
        assert recount.comparison(changed(document, side, "missing", "rate", to=0.02)) == ""
        assert recount.comparison(changed(document, side, "missing", "rate", to=0.0201))
    assert recount.comparison(changed(document, "comparison", "missing_rate", to=None))


def test_safety_allows_a_slack_in_timeouts_and_none_in_tampering():
    document = documents.comparison()
    for verdict in ("improved", "inconclusive"):
        assert recount.safety(changed(document, "comparison", "verdict", to=verdict)) == ""
    late = changed(document, "base", "attempt_summary", "timeout_rate", to=0.1)
    assert recount.safety(changed(late, "candidate", "attempt_summary", "timeout_rate", to=0.12)) == ""
    assert recount.safety(changed(late, "candidate", "attempt_summary", "timeout_rate", to=0.1201))
    assert recount.safety(changed(document, "base", "attempt_summary", "timeout_rate", to=None)) == ""
    both = changed(document, "base", "attempt_summary", "tamper_rate", to=0.1)
    assert recount.safety(changed(both, "candidate", "attempt_summary", "tamper_rate", to=0.1)) == ""
    assert recount.safety(changed(both, "candidate", "attempt_summary", "tamper_rate", to=0.11))


def test_a_control_needs_more_than_chance():
    document = documents.control()
    given = {"kind": "given", "pass_at_1": 0.25, "p_value": 0.01}
    seen = {"n_attempts": 96, "n_passed": 24}
    assert recount.control({**document, "control": given, "observed": {**seen, "n_passed": 25}}) == ""
    assert "no lift" in recount.control({**document, "control": given, "observed": seen})
    for p_value, fine in ((0.0499, True), (0.05, False)):
        found = recount.control(
            {**document, "control": {**given, "p_value": p_value, "pass_at_1": 0.1}, "observed": seen}
        )
        assert (found == "") is fine
    random = {"kind": "random_labels", "pass_at_1": 0.5, "p_value": 0.0}
    assert "chance" in recount.control({**document, "control": random, "observed": {"n_attempts": 10, "n_passed": 8}})
    assert recount.control({**document, "control": random, "observed": {"n_attempts": 10, "n_passed": 9}}) == ""
    lies = {"kind": "random_labels", "pass_at_1": -1.0, "p_value": 0.0}
    assert recount.control({**document, "control": lies, "observed": {"n_attempts": 10, "n_passed": 0}})
    for bad in (
        {"n_attempts": 10, "n_passed": 11},
        {"n_attempts": 10, "n_passed": -1},
        {"n_attempts": True, "n_passed": 1},
    ):
        assert "does not hold what" in recount.control({**document, "observed": bad})
    for lost in ("pass_at_1", "p_value"):
        assert recount.control({**document, "control": {**given, lost: None}})
    assert recount.control({**document, "control": given, "observed": {"n_attempts": 4, "n_passed": 4}}) == ""


def test_twenty_rows_and_a_drop_at_the_limit_are_enough(tmp_path):
    document = documents.heldout(tmp_path, n=20)
    assert recount.heldout(document, tmp_path / "r.json") == ""
    drop = documents.sealed({**document, "forgetting_drops": {"a": 0.05, "b": -0.2}})
    assert recount.heldout(drop, tmp_path / "r.json") == ""
    none = documents.sealed({**document, "forgetting_drops": {"a": None}})
    assert "forgotten" in recount.heldout(none, tmp_path / "r.json")


def with_lines(document, tmp_path, lines, **more):
    path = write_lines(tmp_path / "scores.jsonl", lines)
    seen = [line["candidate"] - line["base"] for line in lines if None not in (line["base"], line["candidate"])]
    made = {**document, "scores": {"path": "scores.jsonl", "sha256": digest_file(path)}, **more}
    return documents.sealed({**made, "trace_delta": sum(seen) / max(1, len(seen))})


def test_rows_that_one_side_did_not_answer_are_missing(tmp_path):
    document = documents.heldout(tmp_path, n=100)
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    for side in ("base", "candidate"):
        two = [{**line, side: None} if i < 2 else line for i, line in enumerate(lines)]
        assert recount.heldout(with_lines(document, tmp_path, two), tmp_path / "r.json") == ""
        three = [{**line, side: None} if i < 3 else line for i, line in enumerate(lines)]
        assert "not observed" in recount.heldout(with_lines(document, tmp_path, three), tmp_path / "r.json")
    dead = [{**line, "base": None} for line in lines]
    assert "0 rows were observed" in recount.heldout(with_lines(document, tmp_path, dead), tmp_path / "r.json")
    broken = write_lines(tmp_path / "scores.jsonl", [{"row": 1}])
    lost = documents.sealed({**document, "scores": {"path": "scores.jsonl", "sha256": digest_file(broken)}})
    assert "not as" in recount.heldout(lost, tmp_path / "r.json")


def test_a_binary_metric_has_to_pass_the_exact_test_too(tmp_path):
    document = documents.heldout(tmp_path)
    lines = [{"cluster": f"s{i % 10}", "base": 0.0, "candidate": float(i < 5)} for i in range(40)]
    assert "McNemar" in recount.heldout(with_lines(document, tmp_path, lines), tmp_path / "r.json")
    soft = with_lines(document, tmp_path, lines, metric="soft")
    assert "McNemar" not in recount.heldout(soft, tmp_path / "r.json")


def test_a_document_is_about_a_run_only_if_all_that_it_names_is():
    artifacts = {"final": "f" * 64}
    about = lambda **document: recount.is_about(document, RUN_ID, artifacts)  # noqa: E731
    assert about(run_id=RUN_ID) and about(model_id="f" * 64) and about(candidate={"digest": "f" * 64})
    assert about(run_id=RUN_ID, model_id="") and about(run_id=RUN_ID, candidate={})
    assert not about() and not about(run_id="", model_id=None) and not about(candidate="f" * 64)
    assert not about(run_id=RUN_ID, model_id="other") and not about(run_id=RUN_ID, candidate={"digest": "o" * 64})


def test_only_a_reply_is_opened():
    inner = {"schema_version": "x", "model_id": ""}
    assert recount.unwrapped({"model_id": "m", "result": inner})["model_id"] == "m"
    assert recount.unwrapped({"model_id": "m", "report": {**inner, "model_id": "n"}})["model_id"] == "n"
    for whole in ({"schema_version": "y", "report": inner}, {"model_id": "m"}, {"report": "text"}):
        assert recount.unwrapped(whole) == whole


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({}, True),
        ({"k_values": [1, 2]}, False),
        ({"k_values": "1"}, False),
        ({"per_environment": {}}, False),
        ({"attempt_summary": {}}, False),
        ({"pass_at_k": {}}, False),
        ({"pass_at_k": {"1": None}}, False),
    ],
)
def test_pass_at_k_is_that_of_its_counts(change, fine):
    report = {
        "k_values": [1],
        "per_environment": [
            {"n": 4, "c": 2, "pass_at_k": {"1": 0.5}},
            {"n": 1, "c": 1, "pass_at_k": {"1": 1.0}},
            {"n": 0, "c": 0, "pass_at_k": {"1": None}},
        ],
        "pass_at_k": {"1": 0.75},
        "attempt_summary": {"tamper_rate": 0.0},
    }
    assert (recount.passk({**report, **change}) == "") is fine


def test_parity_is_with_the_tokenizer_that_the_run_saved(tmp_path):
    run = tmp_path
    document = documents.parity(run)
    assert recount.parity(document, run / "final") == ""
    write_json(run / "final/tokenizer.json", {"model": "other"})
    assert "another tokenizer" in recount.parity(document, run / "final")


def test_the_counts_of_either_side_are_checked_before_harm_is_read():
    document = documents.comparison()
    for side in ("base", "candidate"):
        wrong = changed(document, side, "pass_at_k", "1", to=0.99)
        assert "mean of its environments" in recount.safety(wrong) and "mean of its" in recount.comparison(wrong)


def test_a_candidate_that_passes_nothing_is_read_and_refused():
    found = recount.control({**documents.control(), "observed": {"n_attempts": 96, "n_passed": 0}})
    assert "chance" in found
