"""For each method a run with all the evidence that its promotion needs, so that one thing can be taken away at a time."""

import hashlib

import documents
from evidence_run import RUN_ID, edit, make_card, make_report, make_run, write_json, write_lines

from bashgym.core.canonical import digest_file
from bashgym.evals.reward_eval import evaluate
from bashgym.evidence.release import build_release_evidence
from bashgym.methods import registry

METHODS = ("sft", "dpo", "grpo", "rlvr", "distillation", "session_distillation", "reward_model")
SPAN = {"start": 0, "end": 2}
RECORD = {
    **{name: "x" for name in ("trace_id", "session_id", "decision_id", "reader_model", "verifier_outcome")},
    "record_id": "0" * 24,
    "step_index": 0,
    "original_context": "a",
    "hinted_context": "a [Session Distillation Hint] look",
    "hint_text": "look",
    "target_text": "ls",
    "target_type": "command",
    "target_span": SPAN,
    "loss_mask": {"policy": "target_span_only", "target_span": SPAN},
    "reader_confidence": 0.8,
    "quality_score": 0.8,
    "source_metadata": {},
}
PAIR = {
    "prompt": "list hidden files",
    "chosen": "ls -A",
    "rejected": "ls -l",
    "prompt_hash": hashlib.sha256(b"list hidden files").hexdigest()[:16],
    "metadata": {
        "pair_generation_method": "trace_pair",
        "chosen_trace_id": "t1",
        "rejected_trace_id": "t2",
        "label_source": "verifier",
        "quality_score": 0.9,
        "domain": "shell",
        "split": "train",
        "decontamination_status": "checked",
    },
}
META = {"reward_scale": "0..1", "label_source": "people", "source": "s1", "quality": 0.9, "domain": "shell", "split": "train",
        "decontamination_status": "checked"}  # fmt: skip
OUTCOME = {"example_id": "o", "reward_type": "outcome_reward", "prompt": "p", "response": "r", "reward": 1.0, **META}


def whole_run(models, method):
    """A run of the method whose metrics hold every series that it must emit."""
    request = {"strategy": method, "run_id": RUN_ID}
    names = {*registry.must_emit(registry.get(method), request), "loss", "reward_std", "frac_reward_zero_std"}
    names |= {"session_distillation_masked_tokens"} if method == "session_distillation" else set()
    run = make_run(models, strategy=method, metrics=[{"step": i, **dict.fromkeys(names, 0.5)} for i in range(5)])
    if method == "distillation":
        edit(run / "manifest.json", teacher={"digest": documents.TEACHER_DIGEST})
    return run


def trained_on(run, rows):
    """Makes these rows the file that the run trained on."""
    path = write_lines(run / "data.jsonl", rows)
    sha = digest_file(path)
    edit(run / "manifest.json", dataset={"path": str(path), "digest": sha, "train_rows": len(rows)})
    source = {"path": str(path), "sha256": sha, "rows": len(rows), "format": "jsonl", "license": None}
    edit(run / "source_manifest.json", sources=[source])
    return str(path)


def evidence_of(run, method):
    """What the method asks for beside metrics and release evidence, as arguments of a card."""
    if method == "dpo":
        pairs = trained_on(run, [{**PAIR, "pair_id": f"p{i}", "chosen": f"ls -A {i}"} for i in range(4)])
        heldout = write_json(run / "evals/preference/report.json", documents.heldout(run / "evals/preference"))
        return {"preference_pairs": pairs, "evidence": {"heldout_preference": str(heldout)}}
    if method in ("grpo", "rlvr"):
        return {"evidence": {"canaries": str(write_json(run / "evals/canaries.json", documents.canaries()))}}
    if method == "distillation":
        return {"evidence": {"base_and_teacher_comparison": str(documents.teacher_report(run))}}
    if method == "session_distillation":
        records = trained_on(run, [{**RECORD, "record_id": f"{i:024d}"} for i in range(4)])
        heldout = write_json(run / "evals/recovery/report.json", documents.heldout(run / "evals/recovery"))
        fields = {"reader_model": "reader", "confidence_threshold": 0.5, "hint_policy": "failed steps"}
        return {
            **fields,
            "mask_policy": "target_span_only",
            "target_token_count": 100,
            "session_distillation_records": records,
            "session_distillation_metrics": str(run / "metrics.jsonl"),
            "evidence": {"heldout_recovery": str(heldout)},
        }
    if method == "reward_model":
        examples = write_lines(run / "examples.jsonl", [{**OUTCOME, "example_id": f"o{i}"} for i in range(4)])
        report = write_json(run / "reward_eval.json", evaluate(predictions(run), run_id=RUN_ID))
        return {"reward_examples": str(examples), "reward_eval": str(report)}
    return {}


def predictions(run, right=9):
    """Predictions for ten held-out pairs, so many of them in the right order."""
    rows = [
        {
            **META,
            "example_id": f"e{i}",
            "reward_type": "preference_reward",
            "prompt": f"held {i}",
            "chosen": "a",
            "rejected": "b",
            "predicted_chosen": 1.0 if i < right else 0.0,
            "predicted_rejected": 0.1 * i,
            "split": "eval",
        }
        for i in range(10)
    ]
    return write_lines(run / "predictions.jsonl", rows)


def whole_card(models, method, *, report=None, **changes):
    """(run, result of `create`): a card that asks for promotion with all that the method needs."""
    run = whole_run(models, method)
    given = evidence_of(run, method)
    made = make_report(run, **(report or {}))
    build_release_evidence(made, run_dir=run, output=run / "release_evidence.json")
    asked = {"training_method": method, "decision": "promote", "claim_tier": "narrow_routing"}
    return run, make_card(run, **{**asked, **given, **changes})
