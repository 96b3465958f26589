"""Each kind of evidence is satisfied by its own document about this run, and by nothing that was spoiled."""

import copy

import documents
import pytest
from evidence_run import RUN_ID, codes, make_card, make_report, make_run, points, write_json, write_lines

from bashgym.core.errors import BashGymError
from bashgym.data.replay_records import (
    OptimizerState,
    ReplayRecord,
    TrainPolicy,
    Trajectory,
    TurnLogprobs,
    behavior_policy,
)
from bashgym.data.replay_records import write_records as write_replay
from bashgym.evidence.checks.kinds import ROW_RULES, RULES
from bashgym.evidence.release import build_release_evidence
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
        lambda run: documents.canaries(),
        [
            (("canaries",), []),
            (("canaries",), "many"),
            (("canaries", 0, "guarded"), False),
            (("canaries", 0, "invalid"), True),
            (("canaries", 0, "passed"), True),
            (("canaries", 0), {}),
            (("canaries", 0, "category"), "another"),
            (("summary", "failed"), 3),
            (("run_id",), "run_other"),
            (("schema_version",), "bashgym.reward_hacking_canaries.v2"),
            (("simulated",), True),
            (("smoke",), True),
        ],
    ),
    "holdout": (
        ["holdout_gate", "environment_passk"],
        lambda run: documents.holdout(),
        [
            (("gate", "ship"), False),
            (("gate", "ship"), DROP),
            (("gate", "observed", "n_environments"), 1),
            (("gate", "observed", "pass_at_1_ci_low"), 0.0),
            (("gate", "observed", "pass_at_1"), 0.04),
            (("gate", "observed", "pass_at_1"), True),
            (("gate", "thresholds"), {}),
            (("gate", "observed", "tamper_rate"), 0.01),
            (("gate", "observed", "tamper_rate"), DROP),
            (("contamination", "n"), 1),
            (("contamination",), {}),
            (("model_id",), "other"),
        ],
    ),
    "comparison": (
        ["environment_passk", "passk_before_after", "correlated_passk", "selected_vs_random"],
        lambda run: documents.comparison(),
        [
            (("gate", "ship"), False),
            (("comparison", "verdict"), "inconclusive"),
            (("comparison", "ci_low"), 0.0),
            (("comparison", "ci_low"), None),
            (("comparison", "effect"), 0.6),
            (("comparison", "per_environment", 0, "candidate"), 0.0),
            (("comparison", "per_environment"), []),
            (("comparison", "per_environment"), [{}]),
        ],
    ),
    "safety": (
        ["safety_comparison"],
        lambda run: documents.comparison(),
        [
            (("candidate", "attempt_summary", "tamper_rate"), 0.01),
            (("candidate", "attempt_summary", "timeout_rate"), 0.13),
            (("candidate", "attempt_summary"), {}),
            (("base", "attempt_summary"), {}),
            (("comparison", "verdict"), "regressed"),
            (("comparison", "verdict"), "invalid"),
            (("comparison", "verdict"), DROP),
        ],
    ),
    "heldout": (
        ["heldout_behaviour", "no_regression", "heldout_recovery", "heldout_preference", "selected_vs_random"],
        lambda run: documents.heldout(),
        [
            (("ship",), False),
            (("ship",), "yes"),
            (("bootstrap", "better"), False),
            (("bootstrap", "ci_low"), 0.0),
            (("n",), 19),
            (("contaminated_rows",), [3]),
            (("model_id",), DROP),
        ],
    ),
    "report": (
        ["heldout_behaviour", "no_regression", "heldout_recovery", "heldout_preference"],
        documents.report,
        [
            (("comparison", "verdict"), "inconclusive"),
            (("comparison", "ci_low"), 0),
            (("n_items",), 19),
            (("simulated",), DROP),
            (("candidate", "digest"), "x" * 64),
        ],
    ),
    "both": (
        ["base_and_teacher_comparison"],
        documents.both,
        [
            (("base",), {}),
            (("teacher",), {}),
            (("base", "comparison", "verdict"), "inconclusive"),
            (("teacher", "comparison", "verdict"), None),
            (("teacher", "candidate", "digest"), "x" * 64),
            (("base", "baseline", "digest"), "x" * 64),
        ],
    ),
    "cascade": (
        ["stage_run_cards", "stage_gates"],
        lambda run: documents.cascade(),
        [(("stages",), []), (("stages",), [1]), (("stages", 0, "card_ok"), False), (("stages", 0, "status"), "failed")],
    ),
}
FLAT = [(kind, name) for name, (kinds, _, _) in CASES.items() for kind in kinds]
SPOILED = [(kind, name, i) for name, (kinds, _, spoils) in CASES.items() for kind in kinds for i in range(len(spoils))]


def judged(run, kind, document, tmp_path):
    path = write_json(tmp_path / "document.json", document)
    return codes(make_card(run, evidence={kind: str(path)}))


@pytest.mark.parametrize(("kind", "name"), FLAT)
def test_the_right_document_satisfies_its_kind(run, tmp_path, kind, name):
    assert judged(run, kind, CASES[name][1](run), tmp_path) == set()


@pytest.mark.parametrize(("kind", "name", "i"), SPOILED)
def test_a_spoiled_document_satisfies_nothing(run, tmp_path, kind, name, i):
    _, make, spoils = CASES[name]
    path, value = spoils[i]
    found = judged(run, kind, put(make(run), path, value), tmp_path)
    assert found & {f"{kind}_not_ok", "evidence_run_mismatch", "evidence_simulated", "evidence_smoke"}, (path, found)


@pytest.mark.parametrize(
    "section", ["frozen_split", "retrieval_metrics", "hard_slices", "latency_footprint", "contamination_control"]
)
def test_each_section_of_a_retrieval_report_counts_for_itself(run, tmp_path, section):
    good = documents.retrieval()
    assert judged(run, section, good, tmp_path) == set()
    for bad in ({"ok": False}, {}, None):
        assert f"{section}_not_ok" in judged(run, section, {**good, section: bad}, tmp_path)


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
    import json

    from evidence_run import edit

    from bashgym.core.canonical import digest_file

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


METHODS_TO_REFUSE = ["sft", "dpo", "grpo", "rlvr", "distillation", "session_distillation", "reward_model"]


def refused(models, method, tmp_path, **report):
    run = make_run(models, strategy=method, metrics=points())
    made = make_report(run, **report)
    build_release_evidence(made, run_dir=run, output=run / "release_evidence.json")
    return run, make_card(run, training_method=method, decision="promote")


@pytest.mark.parametrize("method", METHODS_TO_REFUSE)
def test_no_method_promotes_a_dead_equal_or_noisy_candidate(models, tmp_path, method):
    from evidence_run import score_lines

    base = score_lines([i % 4 == 1 for i in range(40)])
    cases = {
        "zero": {"scored": score_lines([False] * 40), "scored_base": base},
        "equal": {"scored": base, "scored_base": base},
        "noise": {"scored": score_lines([i % 4 == 1 or i == 0 for i in range(40)]), "scored_base": base},
        "dead base": {"scored_base": [{**line, "passed": None, "status": "error"} for line in base]},
        "simulated": {"simulated": True},
    }
    for name, report in cases.items():
        if name == "dead base":
            with pytest.raises(BashGymError):
                refused(models, method, tmp_path, **report)
            continue
        _, card = refused(models, method, tmp_path, **report)
        assert card["ok"] is False and card["run_card"]["decision"] == "hold", (method, name)


@pytest.mark.parametrize("method", METHODS_TO_REFUSE)
def test_no_method_promotes_on_contaminated_or_edited_evidence(models, tmp_path, method):
    from evidence_run import score_lines

    trained = score_lines([i % 4 != 0 for i in range(40)], prompt="train")
    _, card = refused(
        models,
        method,
        tmp_path,
        scored=trained,
        scored_base=score_lines([i % 4 == 1 for i in range(40)], prompt="train"),
    )
    assert card["ok"] is False and card["run_card"]["decision"] == "hold"
    run, _ = refused(models, method, tmp_path)
    path = run / "evals/eval_1/candidate.jsonl"
    path.write_text(path.read_text().replace('"passed": false', '"passed": true', 1))
    from bashgym.evidence.runcard import validate

    found = codes(validate(run / "run_card.json", promotion=True))
    assert "evidence_digest_mismatch" in found
