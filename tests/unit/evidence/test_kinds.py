"""Each kind of evidence is satisfied by its own document about this run, and by nothing that was spoiled."""

import copy
import json
import shutil
from pathlib import Path

import documents
import pytest
from evidence_run import RUN_ID, codes, edit, good_run, make_card, make_run, write_json, write_lines

from bashgym.core.canonical import digest_file
from bashgym.data.replay_records import (
    OptimizerState,
    ReplayRecord,
    TrainPolicy,
    Trajectory,
    TurnLogprobs,
    behavior_policy,
)
from bashgym.data.replay_records import write_records as write_replay
from bashgym.evidence import overlap, retrieval
from bashgym.evidence.checks.kinds import ROW_RULES, RULES
from bashgym.methods import registry
from bashgym.methods.spec import EvidenceKind

WITH_FIELDS = {
    *("metrics", "release_evidence", "preference_pairs", "session_records", "masked_token_metrics", "reward_examples"),
    *("reward_eval", "smoke_bundle"),
}
DERIVED_ONLY = {"format_validity", "zero_std_diagnostics", "world_model_quality"}


def put(document, path, value):
    """A copy of the document with one value changed; `DROP` removes it."""
    made = copy.deepcopy(document)
    at = made
    for key in path[:-1]:
        at = at[key]
    if value is DROP:
        at.pop(path[-1])
    else:
        at[path[-1]] = value
    return made


DROP = object()
CASES = {
    "canaries": (
        ["canaries"],
        lambda run, _: documents.canaries(),
        [
            (("canaries",), []),
            (("canaries",), "many"),
            (("canaries", 0, "guarded"), False),
            (("canaries", 0, "invalid"), True),
            (("canaries", 0, "passed"), True),
            (("canaries", 0, "passed"), None),
            (("canaries", 0, "outside"), "sent a packet"),
            (("canaries", 0, "verifier_status"), "passed"),
            (("canaries", 0, "control_beaten"), False),
            (("canaries", 0, "honest_passes"), None),
            (("canaries", 0, "environment_id"), "env_1"),
            (("canaries", 0), {}),
            (("canaries", 0, "category"), "another"),
            (("summary", "failed"), 3),
            (("summary", "total"), 3),
            (("run_id",), "run_other"),
            (("model_id",), "run_other"),
            (("schema_version",), "bashgym.reward_hacking_canaries.v2"),
            (("simulated",), True),
            (("smoke",), True),
        ],
    ),
    "holdout": (
        ["holdout_gate", "environment_passk"],
        lambda run, _: documents.holdout(),
        [
            (("gate", "ship"), False),
            (("gate", "ship"), DROP),
            (("gate", "observed", "pass_at_1"), 0.9),
            (("gate", "observed", "pass_at_1"), True),
            (("gate", "thresholds"), {}),
            (("gate", "thresholds", "min_pass_at_1"), 0.99),
            (("report", "attempt_summary", "tamper_rate"), 0.01),
            (("report", "attempt_summary", "tamper_rate"), DROP),
            (("report", "attempt_summary", "verifier_status_distribution", "tampered"), 1),
            (("report", "attempt_summary", "timeout_rate"), 0.26),
            (("report", "missing", "rate"), 0.021),
            (("report", "per_environment", 0, "c"), 0),
            (("report", "per_environment", 0, "n"), "4"),
            (("report", "per_environment"), []),
            (("report", "pass_at_k", "1"), 0.99),
            (("report", "k_values"), []),
            (("report",), {}),
            (("split", "holdout_ids"), ["env_0"]),
            (("split", "holdout_groups"), ["one"]),
            (("split", "hashes"), {f"env_{i}": "0" * 16 for i in range(24)}),
            (("contamination", "n"), 1),
            (("contamination",), {}),
            (("model_id",), "other"),
        ],
    ),
    "comparison": (
        ["environment_passk", "passk_before_after", "correlated_passk", "selected_vs_random"],
        lambda run, _: documents.comparison(),
        [
            (("gate", "ship"), False),
            (("comparison", "verdict"), "inconclusive"),
            (("comparison", "effect"), 0.1),
            (("comparison", "per_environment", 0, "candidate"), 0.9),
            (("comparison", "per_environment"), []),
            (("comparison", "per_environment"), [{}]),
            (("comparison", "missing_rate"), 0.03),
            (("comparison", "gate", "looks"), 0),
            (("comparison", "gate", "looks"), 1000),
            (("comparison", "noise_floor"), {"sigma": 0.5}),
            (("base", "per_environment", 0, "c"), 4),
            (("base", "missing", "rate"), 0.03),
            (("candidate", "missing", "rate"), 0.03),
            (("candidate", "attempt_summary", "timeout_rate"), 0.3),
            (("candidate", "attempt_summary", "tamper_rate"), 0.01),
            (("compare_k",), 4),
        ],
    ),
    "safety": (
        ["safety_comparison"],
        lambda run, _: documents.comparison(),
        [
            (("candidate", "attempt_summary", "tamper_rate"), 0.01),
            (("candidate", "attempt_summary", "timeout_rate"), 0.021),
            (("candidate", "attempt_summary"), {}),
            (("base", "attempt_summary"), {}),
            (("comparison", "verdict"), "regressed"),
            (("comparison", "verdict"), "invalid"),
            (("comparison", "verdict"), DROP),
        ],
    ),
    "heldout": (
        ["heldout_behaviour", "no_regression", "heldout_recovery", "heldout_preference", "selected_vs_random"],
        lambda run, folder: documents.heldout(folder),
        [
            (("ship",), False),
            (("ship",), "yes"),
            (("trace_delta",), 0.51),
            (("bootstrap", "gate", "looks"), True),
            (("forgetting_drops", "gsm8k"), 0.051),
            (("contaminated_rows",), {"3": {}}),
            (("scores", "sha256"), "0" * 64),
            (("model_id",), DROP),
        ],
    ),
    "report": (
        ["heldout_behaviour", "no_regression", "heldout_recovery", "heldout_preference"],
        lambda run, _: json.loads(documents.report(run).read_text()),
        [
            (("comparison", "verdict"), "inconclusive"),
            (("comparison", "ci_low"), 0),
            (("comparison", "effect"), 0.4),
            (("pass_rate", "candidate", "value"), 0.9),
            (("n_items",), 60),
            (("simulated",), DROP),
            (("candidate", "digest"), "x" * 64),
            (("baseline", "digest"), "x" * 64),
            (("suite", "split"), "train"),
            (("scores", "candidate", "sha256"), "0" * 64),
        ],
    ),
    "teacher": (
        ["base_and_teacher_comparison"],
        lambda run, _: json.loads(documents.teacher_report(run).read_text()),
        [
            (("baseline", "digest"), documents.TEACHER_DIGEST[::-1] + "0"),
            (("baseline", "digest"), "b" * 64),
            (("baseline", "digest"), ""),
            (("candidate", "digest"), "x" * 64),
            (("comparison", "effect"), 0.4),
            (("simulated",), True),
            (("n_items",), 60),
            (("scores", "baseline", "sha256"), "0" * 64),
        ],
    ),
}
FLAT = [(kind, name) for name, (kinds, _, _) in CASES.items() for kind in kinds]
SPOILED = [(kind, name, i) for name, (kinds, _, spoils) in CASES.items() for kind in kinds for i in range(len(spoils))]


def judged(run, kind, document, tmp_path):
    edit(run / "manifest.json", teacher={"digest": documents.TEACHER_DIGEST})
    # A report and its scores stay where they were made; the rest comes from elsewhere, with the scores beside it.
    place = run / "evals" / str(document.get("eval_id")) if "eval_id" in document else tmp_path
    return codes(make_card(run, evidence={kind: str(write_json(place / "document.json", document))}))


@pytest.mark.parametrize(("kind", "name"), FLAT)
def test_the_right_document_satisfies_its_kind(run, tmp_path, kind, name):
    assert judged(run, kind, CASES[name][1](run, tmp_path), tmp_path) == set()


def test_one_attack_that_got_through_is_one_too_many(run, tmp_path):
    document = documents.canaries()
    document["canaries"][0]["guarded"] = False
    document["summary"] = documents.summarise(document["canaries"])
    card = make_card(run, evidence={"canaries": str(write_json(tmp_path / "canaries.json", document))})
    said = [finding["message"] for finding in card["findings"] if finding["code"] == "canaries_not_ok"]
    assert "1 attacks got through" in said[0]
    document = documents.canaries()
    document["canaries"][0]["invalid"] = True
    document["summary"] = documents.summarise(document["canaries"])
    card = make_card(run, evidence={"canaries": str(write_json(tmp_path / "canaries.json", document))})
    said = [finding["message"] for finding in card["findings"] if finding["code"] == "canaries_not_ok"]
    assert "1 canaries could not fail" in said[0]


@pytest.mark.parametrize(("kind", "name", "i"), SPOILED)
def test_a_spoiled_document_satisfies_nothing(run, tmp_path, kind, name, i):
    _, make, spoils = CASES[name]
    path, value = spoils[i]
    document = put(make(run, tmp_path), path, value)
    # Whoever spoils a sealed report seals it again.
    document = documents.sealed(document) if "report_digest" in document else document
    found = judged(run, kind, document, tmp_path)
    assert found & {f"{kind}_not_ok", "evidence_run_mismatch", "evidence_simulated", "evidence_smoke"}, (path, found)


def test_a_held_out_report_is_read_with_its_seal_and_its_scores(run, tmp_path):
    good = documents.heldout(tmp_path)
    assert "heldout_recovery_not_ok" in judged(run, "heldout_recovery", {**good, "n": 41}, tmp_path), (
        "the seal is broken"
    )
    few = documents.heldout(tmp_path / "few", n=19)
    assert "heldout_recovery_not_ok" in judged(run, "heldout_recovery", few, tmp_path / "few")
    made = documents.heldout(tmp_path / "c")
    lines = [{"cluster": "s", "base": 0.0, "candidate": 1.0}] * 40
    scores = write_lines(tmp_path / "c/scores.jsonl", lines)
    changed = {**made, "trace_delta": 1.0, "scores": {"path": "scores.jsonl", "sha256": digest_file(scores)}}
    found = judged(run, "heldout_recovery", documents.sealed(changed), tmp_path / "c")
    assert "heldout_recovery_not_ok" in found, "one session says nothing about others"
    lines = [{"cluster": f"s{i % 10}", "base": 1.0, "candidate": 1.0} for i in range(38)]
    lines += [{"cluster": f"s{i}", "base": 0.0, "candidate": 1.0} for i in range(2)]
    scores = write_lines(tmp_path / "c/scores.jsonl", lines)
    changed = {**made, "trace_delta": 0.05, "scores": {"path": "scores.jsonl", "sha256": digest_file(scores)}}
    found = judged(run, "heldout_recovery", documents.sealed(changed), tmp_path / "c")
    assert "heldout_recovery_not_ok" in found, "better by noise"
    (tmp_path / "c/scores.jsonl").unlink()
    assert "heldout_recovery_not_ok" in judged(run, "heldout_recovery", made, tmp_path / "c")


def test_the_reply_of_an_endpoint_counts_as_what_is_in_it(run, tmp_path):
    for kind, make in (("holdout_gate", documents.holdout), ("passk_before_after", documents.comparison)):
        reply = {"model_id": RUN_ID, "result": make(), "recorded": True}
        assert judged(run, kind, reply, tmp_path) == set()
        reply["result"]["model_id"] = "another"
        assert "evidence_run_mismatch" in judged(run, kind, reply, tmp_path)


def test_held_out_environments_are_looked_for_in_what_the_run_trained_on(run, tmp_path):
    document = documents.holdout()
    held = document["split"]["holdout_ids"][0]
    spec = next(spec for spec in documents.SPECS if spec["id"] == held)
    for environment in (spec, {**spec, "id": "renamed"}, {**spec, "instruction": "Another text"}):
        _trained_on(run, [{"prompt": "x", "environment": environment}], tmp_path)
        assert "holdout_gate_not_ok" in judged(run, "holdout_gate", document, tmp_path), environment
    other = next(spec for spec in documents.SPECS if spec["id"] not in document["split"]["holdout_ids"])
    _trained_on(run, [{"prompt": "x", "environment": other}], tmp_path)
    assert "holdout_gate_not_ok" not in judged(run, "holdout_gate", document, tmp_path)


def _trained_on(run, rows, tmp_path):
    path = write_lines(tmp_path / "trained.jsonl", rows)
    edit(run / "manifest.json", dataset={"path": str(path), "digest": digest_file(path)})


SECTIONS = {
    "frozen_split": [
        (("frozen_split", "queries_sha256"), "1" * 63),
        (("frozen_split",), {}),
        (("queries", 1, "query_id"), "q0"),
        (("queries",), []),
        (("queries",), None),
    ],
    "retrieval_metrics": [
        (("queries", 0, "candidate", "mrr"), -9.0),
        (("queries", 0, "candidate", "ndcg_at_10"), -9.0),
        (("queries", 0, "incumbent"), {}),
        (("queries",), []),
    ],
    "hard_slices": [
        (("hard_slices",), []),
        (("hard_slices",), ["unheard"]),
        (("queries", 1, "candidate", "ndcg_at_10"), -9.0),
        (("queries", 1, "slice"), DROP),
    ],
    "latency_footprint": [
        (("latency", "query_latency_ms"), 10.1),
        (("latency", "query_latency_ms"), 0),
        (("latency", "query_latency_ms"), -1.0),
        (("latency", "budget_ms"), DROP),
        (("latency", "index_bytes"), 0),
        (("latency",), {}),
    ],
    "contamination_control": [
        (("contamination", "n"), 1),
        (("contamination", "n"), None),
        (("contamination", "n_checked"), 0),
    ],
}


@pytest.mark.parametrize("kind", SECTIONS)
def test_each_section_of_a_retrieval_report_counts_for_itself(run, tmp_path, kind):
    assert judged(run, kind, documents.retrieval(), tmp_path) == set()
    for path, value in SECTIONS[kind]:
        bad = put(documents.retrieval(), path, value)
        assert f"{kind}_not_ok" in judged(run, kind, bad, tmp_path), (path, value)
    assert judged(run, kind, put(documents.retrieval(), ("latency", "query_latency_ms"), 10.0), tmp_path) == set()


def test_a_retriever_is_judged_at_the_limits_as_they_are_written():
    document = documents.retrieval()
    twenty = {**document, "queries": document["queries"][:20]}
    assert [rule(twenty) for rule in retrieval.RULES.values()] == [""] * 5
    nineteen = {**document, "queries": document["queries"][:19]}
    assert retrieval.frozen_split(nineteen) and retrieval.metrics(nineteen) and retrieval.hard_slices(nineteen)
    same = [{**row, "candidate": row["incumbent"]} for row in document["queries"]]
    assert retrieval.metrics({**document, "queries": same}), "no gain is no gain"
    assert retrieval.hard_slices({**document, "queries": same}) == "", "as good as before on the hard ones"
    fast = {**document, "latency": {**document["latency"], "query_latency_ms": 0.5}}
    assert retrieval.latency(fast) == ""
    nothing = {**document, "latency": dict.fromkeys(document["latency"], -1.0)}
    assert retrieval.latency(nothing)


def test_questions_are_found_in_any_turn_and_in_no_other_role(tmp_path):
    rows = write_lines(tmp_path / "t.jsonl", [{"messages": [{"role": "user", "content": "count the lines of a.txt"}]}])
    asked = {"role": "user", "content": "count the lines of a.txt"}
    found = overlap.questions(
        {
            "second": [{"role": "user", "content": "hello there"}, asked],
            "plain": "Count  the lines of A.txt",
            "system": [{**asked, "role": "system"}],
            "other": ["count the lines of a.txt", {"role": "user", "content": 3}],
        },
        rows,
    )
    assert found == ["plain", "second"]
    (tmp_path / "bad.jsonl").write_text("[1]\n")
    assert overlap.questions({"a": "b"}, tmp_path / "absent.jsonl") is None
    assert overlap.environments({"a": "b"}, tmp_path / "absent.jsonl") is None
    assert overlap.training_file({"dataset": 3}) is None


def stages(run, **changes):
    """A cascade of one stage: the run with a card of its own, under another id."""
    stage_run = good_run(run.parent / "stage", run_id="run_20260101_000000_57a9e000")
    card = make_card(stage_run, run_id=stage_run.name, models_dir=stage_run.parent, decision="promote")
    assert card["ok"], card["findings"]
    moved = run.parent / stage_run.name
    shutil.rmtree(moved, ignore_errors=True)
    shutil.move(stage_run, moved)
    path = moved / "run_card.json"
    stage = {
        "domain": "bash_commands",
        "status": "completed",
        "run_id": moved.name,
        "card": {"path": str(path), "sha256": digest_file(path)},
        **changes,
    }
    return {"schema_version": "bashgym.cascade.v1", "run_id": RUN_ID, "stages": [stage]}


@pytest.mark.parametrize("kind", ["stage_run_cards", "stage_gates"])
def test_every_stage_of_a_cascade_holds_as_a_promotion(run, tmp_path, kind):
    good = stages(run)

    def cascade(document):
        path = write_json(tmp_path / "cascade.json", document)
        return codes(make_card(run, training_method="cascade", evidence={kind: str(path)}, promotion=False))

    assert f"{kind}_not_ok" not in cascade(good)
    for change in ({"status": "failed"}, {"card": {}}, {"run_id": "run_other"}):
        assert f"{kind}_not_ok" in cascade({**good, "stages": [{**good["stages"][0], **change}]}), change
    for bad in ([], [1], "many"):
        assert f"{kind}_not_ok" in cascade({**good, "stages": bad})
    card = Path(good["stages"][0]["card"]["path"])
    edit(card.parent / "run_state.json", status="failed")
    assert f"{kind}_not_ok" in cascade(good), "judged now, not when the cascade was written"
    own = run / "run_card.json"
    loop = {**good["stages"][0], "card": {"path": str(own), "sha256": digest_file(own)}}
    assert f"{kind}_not_ok" in cascade({**good, "stages": [loop]}), "a cascade is no stage of itself"


@pytest.mark.parametrize("kind", sorted({*RULES} - {"selected_vs_random"}))
def test_saying_ok_is_not_enough(run, tmp_path, kind):
    assert f"{kind}_not_ok" in judged(run, kind, {"run_id": RUN_ID, "ok": True, "ship": True, "passed": True}, tmp_path)
    assert f"{kind}_not_ok" in judged(
        run, kind, {"run_id": RUN_ID, "schema_version": next(iter(RULES[kind]))}, tmp_path
    )


def test_every_kind_that_a_method_asks_for_has_a_way_to_be_satisfied():
    from bashgym.evidence.checks.claims import DERIVED

    asked = {
        str(rule.kind)
        for method in registry.METHODS.values()
        for rule in method.evidence
        if rule.required_for_promotion
    }
    ways = {*map(str, RULES), *map(str, ROW_RULES), *map(str, DERIVED), *WITH_FIELDS}
    assert asked <= ways, asked - ways
    assert {str(kind) for kind in EvidenceKind} - ways <= DERIVED_ONLY


def record(index, *, logprob=-0.5, train=True):
    turn = TurnLogprobs(turn=1, tokens=["a", "b"], logprobs=[-0.1, logprob])
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "ab"}]
    return ReplayRecord(
        batch_id="b", environment_id="e", attempt_index=index, prompt="x", reward=1.0, passed=True, verifier_status="passed",
        trajectory=Trajectory(messages=messages), behavior_policy=behavior_policy([turn]),
        optimizer=OptimizerState(advantage=0.5 if train else None),
        train_policy=TrainPolicy(token_logprobs=[-0.1, -0.4]) if train else None,
    )  # fmt: skip


def replay_codes(models, records, kind):
    """The card of a dppo run that trained on the replay."""
    run = make_run(models, strategy="dppo")
    path = models.parent / "train.jsonl"
    write_replay(path, records)
    _retrain(run, path)
    return codes(make_card(run, training_method="dppo", evidence={kind: str(path)}))


def _retrain(run, path):
    manifest = json.loads((run / "manifest.json").read_text())
    edit(run / "manifest.json", dataset={**manifest["dataset"], "digest": digest_file(path)})


def test_a_replay_counts_only_whole_and_as_what_was_trained_on(models):
    good = [record(0), record(1)]
    for kind in ("replay", "replay_enrichment"):
        assert not replay_codes(models, good, kind) & {f"{kind}_not_ok", f"missing_{kind}", f"invalid_{kind}_artifact"}
    assert "replay_not_ok" in replay_codes(models, [record(0), record(1, logprob=None)], "replay")
    assert "replay_enrichment_not_ok" in replay_codes(models, [record(0), record(1, train=False)], "replay_enrichment")
    assert "evidence_file_empty" in replay_codes(models, [], "replay")
    run = make_run(models, strategy="dppo")
    other = models.parent / "other.jsonl"
    write_replay(other, good)
    assert "evidence_run_mismatch" in codes(make_card(run, training_method="dppo", evidence={"replay": str(other)}))
    write_lines(other, [{"batch_id": "b"}])
    assert "invalid_replay_artifact" in codes(make_card(run, training_method="dppo", evidence={"replay": str(other)}))
