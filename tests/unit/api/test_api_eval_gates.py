"""The evaluation gates over HTTP: documents out, one error envelope, and a registry that remembers by model."""

from __future__ import annotations

from typing import Any

import pytest

GATES = "/api/eval/environments"
SPECS = [
    {"id": f"env_{i}", "instruction": f"Write {i} into out.txt", "domain": f"files{i % 8}"}
    | {"verifier": {"command": f"grep -qx {i} out.txt"}}
    for i in range(24)
]


def tries(passes: int, of: int = 8) -> list[dict[str, Any]]:
    """Which attempts pass differs from task to task, so that each index (seed) has the same rate."""
    return [
        {"environment_id": spec["id"], "attempt_index": k, "passed": (k + i) % of < passes}
        for i, spec in enumerate(SPECS)
        for k in range(of)
    ]


def body(**more: Any) -> dict[str, Any]:
    return {"model_id": "m", "environments": SPECS, "attempts": tries(4), "record_to_registry": False, **more}


def test_passk_is_the_unbiased_value(api: Any) -> None:
    status, doc, _ = api("POST", f"{GATES}/passk", body(k_values=[1, 4]))
    assert status == 200 and doc["recorded"] is False
    assert doc["report"]["pass_at_k"] == {"1": 0.5, "4": pytest.approx(1 - 1 / 70)}


def test_the_gates_answer_with_a_verdict_and_its_reasons(api: Any) -> None:
    status, doc, _ = api("POST", f"{GATES}/holdout-gate", body(split_by="domain", k_values=[1]))
    assert status == 200 and doc["result"]["gate"]["ship"] is True
    pair = {"environments": SPECS, "base_attempts": tries(2), "candidate_attempts": tries(2), "cluster_by": "domain"}
    status, doc, _ = api("POST", f"{GATES}/holdout-comparison", {**pair, "n_resamples": 1000})
    assert status == 200 and doc["result"]["gate"]["ship"] is False, "an equal candidate"
    pair["candidate_attempts"] = tries(7)
    assert api("POST", f"{GATES}/holdout-comparison", pair)[1]["result"]["gate"]["ship"] is True
    status, doc, _ = api("POST", f"{GATES}/spurious-reward-control", {"environments": SPECS, "attempts": tries(0)})
    assert status == 200 and doc["result"]["gate"]["ship"] is False, "a model that passes nothing"


@pytest.mark.parametrize(
    ("path", "change", "expected"),
    [
        ("passk", {"k_values": [1, 16]}, (422, "attempts_invalid", "attempts")),
        ("passk", {"attempts": [*tries(4), tries(4)[0]]}, (422, "attempts_invalid", "2 times")),
        ("passk", {"environments": SPECS[1:]}, (422, "attempts_invalid", "'env_0'")),
        ("passk", {"atempts": []}, (422, "unknown_field", "atempts")),
        ("holdout-gate", {"split_by": "colour"}, (422, "invalid_field", "colour")),
        ("holdout-comparison", {}, (422, "unknown_field", "attempts")),
    ],
)
def test_what_cannot_be_judged_is_refused(api: Any, path: str, change: dict[str, Any], expected: Any) -> None:
    status, doc, _ = api("POST", f"{GATES}/{path}", body(**change))
    assert (status, doc["detail"]["code"]) == expected[:2] and expected[2] in doc["detail"]["message"]


def test_the_verdict_of_a_model_is_what_was_recorded_for_it(api: Any) -> None:
    assert api("GET", "/api/eval/verdict/team/m")[0] == 404
    asked = body(model_id="team/m", split_by="domain", k_values=[1], record_to_registry=True)
    assert api("POST", f"{GATES}/holdout-gate", asked)[1]["recorded"] is True
    scores = {"results": {"gsm8k": {"exact_match,none": 0.5}}}
    ingested = {"model_id": "team/m", "base_results": scores, "candidate_results": scores}
    status, doc, _ = api("POST", "/api/eval/benchmarks/ingest", ingested)
    assert status == 200 and doc["forgetting_ok"] is True and doc["recorded"] is True
    external = {"model_id": "team/m", "results": scores, "benchmark_name": "gsm8k", "record_to_registry": False}
    assert api("POST", "/api/eval/benchmarks/external-ingest", external)[1]["recorded"] is False
    status, doc, _ = api("GET", "/api/eval/verdict/team/m")
    assert status == 200 and doc["n_environment_holdout_evals"] == 1 and doc["display_name"] == "team/m"
    assert set(doc["latest_by_kind"]) == {"environment_holdout", "forgetting"}


def test_benchmark_commands_are_argv(api: Any) -> None:
    query = "base_url=http://localhost:8000/v1&model=m&include=swebench&include=bfcl"
    status, doc, _ = api("GET", f"/api/eval/benchmark-commands?{query}")
    assert status == 200 and set(doc["commands"]) == {"swebench", "swebench_evaluate", "bfcl", "bfcl_evaluate"}
    assert api("GET", "/api/eval/benchmark-commands?base_url=http://h&model=m&include=x")[0] == 422
