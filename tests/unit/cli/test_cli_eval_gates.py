"""`bashgym eval` gates: the exit status says whether a model ships, and the text says why not."""

import json

import pytest

SPECS = [
    {"id": f"env_{i}", "instruction": f"Do task {i}", "domain": f"d{i % 8}", "verifier": {"command": "true"}}
    for i in range(24)
]


def tries(passes, of=4):
    return [
        {"environment_id": spec["id"], "attempt_index": k, "passed": (k + i) % of < passes}
        for i, spec in enumerate(SPECS)
        for k in range(of)
    ]


@pytest.fixture()
def ask(cli, tmp_path):
    def run(command, body, *flags):
        path = tmp_path / "body.json"
        path.write_text(json.dumps(body))
        return cli("eval", command, "--data-file", str(path), *flags)

    return run


def test_a_model_that_passes_ships_with_0_and_one_that_never_passes_does_not_with_1(ask):
    body = {"model_id": "m", "environments": SPECS, "split_by": "domain"}
    said = ask("holdout-gate", {**body, "attempts": tries(3)})
    assert said.code == 0 and said.out.startswith("ships")
    said = ask("holdout-gate", {**body, "attempts": tries(0), "min_pass_at_1": 0})
    assert said.code == 1 and "does not exclude zero" in said.out
    said = ask("holdout-gate", {**body, "attempts": tries(3)}, "--json")
    assert said.doc["result"]["gate"]["ship"] is True


def test_passk_prints_every_k_and_refuses_too_few_attempts(ask):
    body = {"model_id": "m", "environments": SPECS, "attempts": tries(2), "k_values": [1, 4]}
    said = ask("passk", body)
    assert said.code == 0 and "pass@1  50.0%" in said.out and "pass@4  100.0%" in said.out
    said = ask("passk", {**body, "k_values": [8]})
    assert said.code == 1 and "attempts_invalid" in said.err


def test_comparison_and_control_end_with_the_verdict(ask):
    pair = {"environments": SPECS, "cluster_by": "domain", "n_resamples": 1000, "base_attempts": tries(1)}
    assert ask("holdout-comparison", {**pair, "candidate_attempts": tries(4)}).code == 0
    assert ask("holdout-comparison", {**pair, "candidate_attempts": tries(1)}).code == 1
    assert ask("spurious-control", {"environments": SPECS, "attempts": tries(2)}).code == 0
    said = ask("spurious-control", {"environments": SPECS, "attempts": tries(0)})
    assert said.code == 1 and "chance alone" in said.out


def test_benchmarks_are_ingested_and_remembered(ask, cli):
    def results(value):
        return {"results": {"gsm8k": {"exact_match,none": value, "exact_match_stderr,none": 0.01}}}

    body = {"model_id": "m", "base_results": results(0.5), "candidate_results": results(0.49)}
    assert ask("benchmarks-ingest", body).code == 0
    assert ask("benchmarks-ingest", {**body, "candidate_results": results(0.3)}).code == 1
    said = ask("external-ingest", {"model_id": "m", "results": results(0.5), "benchmark_name": "gsm8k"})
    assert said.code == 0 and "exact_match" in said.out
    said = cli("eval", "verdict", "m")
    assert said.code == 0 and "forgetting" in said.out and "external_benchmark" in said.out
    assert "eval_not_found" in cli("eval", "verdict", "other").err


def test_commands_are_printed_ready_to_copy(cli):
    said = cli("eval", "benchmark-commands", "--base-url", "http://h/v1", "--model", "m", "--task", "gsm8k")
    assert said.code == 0 and said.out.startswith("lm_eval --model local-chat-completions")


def test_power_says_what_an_evaluation_can_show_before_it_is_paid_for(cli):
    said = cli("eval", "power", "--items", "300", "--effect", "0.05", "--looks", "3", "--json")
    assert said.code == 0 and said.doc["items_needed"] == 626 and said.doc["least_clusters"] == 6
    assert [round(look["z"], 3) for look in said.doc["looks"]] == [3.71, 2.511, 1.993]
    assert cli("eval", "power", "--candidate", "3", "--json").doc["least_clusters"] == 8
    assert "invalid_field" in cli("eval", "power", "--effect", "0").err
