"""`bashgym evidence` and `training runcard` as they are typed: exit statuses, one JSON document, no traceback."""

import json

import documents
import pytest
from evidence_run import BASE, RUN_ID, make_card, make_report, make_run, write_json

from bashgym.cli.main import main


@pytest.fixture
def cli(capfd):
    def call(*words):
        capfd.readouterr()
        code = main([str(word) for word in words])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def test_a_release_is_built_with_what_stands_beside_it(cli, models, tmp_path):
    run = make_run(models)
    report, gate = (
        make_report(run),
        write_json(tmp_path / "gate.json", {"model_id": RUN_ID, "result": documents.holdout()}),
    )
    asked = ("evidence", "release", "--run", RUN_ID, "--eval-report", report)
    code, out, _ = cli(*asked, "--holdout-gate", gate, "--require", "environment", "--json")
    assert code == 0 and json.loads(out)["release_gate"]["sections"]["holdout_gate"]["ship"] is True
    assert json.loads((run / "release_evidence.json").read_text())["ship"] is True
    code, out, _ = cli(
        *asked,
        "--external-benchmarks",
        write_json(tmp_path / "b.json", documents.external()),
        "--min-score",
        "gsm8k=0.7",
    )
    assert code == 1 and "does not ship" in out and "below 0.7" in out
    code, _, err = cli(*asked, "--min-score", "gsm8k")
    assert code == 1 and "name=number" in err
    code, _, err = cli(*asked, "--require", "vibes")
    assert code == 1 and "vibes" in err
    assert cli(*asked, "--holdout-gate", tmp_path / "absent.json")[0] == 1


def test_a_bundle_is_made_signed_verified_and_explained(cli, run, tmp_path):
    make_card(run, decision="promote")
    folder = tmp_path / "out" / RUN_ID
    assert cli("evidence", "bundle", "--run", RUN_ID, "--output", folder)[0] == 0
    assert cli("evidence", "bundle", "--run", RUN_ID, "--output", folder)[0] == 1, "it exists"
    code, out, err = cli("evidence", "keygen", "--output", tmp_path / "key")
    secret = (tmp_path / "key").read_text().splitlines()[1]
    assert code == 0 and secret not in out + err
    code, out, err = cli("evidence", "sign", folder, "--key", tmp_path / "key")
    assert code == 0 and secret not in out + err
    code, out, _ = cli("evidence", "verify", folder, "--public-key", tmp_path / "key.pub", "--promotion")
    assert code == 0 and out.startswith("holds") and "signed by" in out
    code, out, _ = cli("evidence", "explain", folder)
    assert code == 0 and "As a promotion it holds." in out
    cli("evidence", "keygen", "--output", tmp_path / "other")
    code, _, err = cli("evidence", "verify", folder, "--public-key", tmp_path / "other.pub")
    assert code == 1 and "signature" in err
    scores = folder / "evals/eval_1/candidate.jsonl"
    scores.write_text(scores.read_text().replace('"passed": false', '"passed": true', 1))
    code, out, _ = cli("evidence", "verify", folder)
    assert code == 2 and "candidate.jsonl: changed" in out
    code, out, _ = cli("evidence", "verify", folder, "--json")
    assert code == 2 and json.loads(out)["ok"] is False
    assert cli("evidence", "verify", tmp_path / "nowhere")[0] == 1


CREATE = ("training", "runcard", "create", "--run-id", RUN_ID, "--base-model", BASE, "--compute-target", "local")


def test_a_card_takes_its_files_by_option_and_by_kind(cli, models, tmp_path):
    run = make_run(models)
    card = run / "run_card.json"
    asked = (*CREATE, "--training-method", "grpo", "--output", card)
    code, out, _ = cli(*asked, "--metrics", run / "metrics.jsonl", "--json")
    assert code == 2, "the run trained with another method"
    made = json.loads(out)["run_card"]
    assert made["metrics_path"] == "metrics.jsonl" and made["training_plan_path"] == "training_plan.json"
    canaries = write_json(run / "evals/canaries.json", documents.canaries())
    attach = ("training", "runcard", "attach-evidence", card)
    code, out, _ = cli(*attach, "--evidence", f"canaries={canaries}", "--release-evidence", make_report(run), "--json")
    status = json.loads(out)["artifact_status"]
    assert status["canaries"]["accepted"] and status["release_evidence"]["accepted"], out
    for bad in ("canaries", "=x", "canaries="):
        assert cli(*attach, "--evidence", bad)[0] == 2
    assert cli("training", "runcard", "validate", card)[0] == 2


def test_a_card_of_a_good_run_is_ok(cli, run):
    code, out, _ = cli(
        *CREATE, "--training-method", "sft", "--output", run / "run_card.json", "--promotion", "--decision", "promote"
    )
    assert code == 0 and out.startswith("ok"), out
    assert cli("training", "runcard", "validate", run / "run_card.json", "--promotion")[0] == 0
    code, out, _ = cli("training", "runcard", "list", "--json")
    assert code == 0 and json.loads(out)["run_cards"][0]["decision"] == "promote"
