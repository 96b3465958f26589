"""Whole evaluations: real model, real sandbox, real files."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.core.runtime import child_env
from bashgym.envs.spec import Build
from bashgym.evals import suites
from bashgym.evals.attach import attach
from bashgym.evals.files import compare_files, read_scores
from bashgym.evidence import scores as evidence
from bashgym.inference.job import Completion, attempt_seed

pytestmark = [pytest.mark.train, pytest.mark.sandbox]
TINY = "bashgym/tiny-qwen2"
SMALL = {"model": TINY, "baseline": TINY, "per_family": 1, "max_new_tokens": 6, "n_resamples": 1000}


@pytest.fixture
def evals(workspace):
    return workspace.evals


def completion(item, text, attempt=0):
    seed = attempt_seed(0, item.item_id, attempt)
    return Completion(
        item_id=item.item_id, attempt=attempt, seed=seed, completion=text, n_tokens=5, finish_reason="stop"
    )


def give_answers(evals, eval_id, side, answers):
    """An evaluation that was interrupted after these answers were made."""
    folder = evals.root / eval_id / side
    folder.mkdir(parents=True)
    (folder / "completions.jsonl").write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))


def experts_against_nothing(evals, eval_id, per_family=2):
    suite = suites.load("terminal", per_family=per_family)
    give_answers(evals, eval_id, "candidate", [completion(item, item.payload.solution) for item in suite.items])
    give_answers(evals, eval_id, "baseline", [completion(item, "") for item in suite.items])
    return suite


def test_a_model_against_itself_gives_a_whole_report_and_no_verdict(evals):
    shares = []
    report = evals.run(**SMALL, progress=lambda share, text: shares.append(share))
    assert report["schema_version"] == "bashgym.eval_report.v1" and report["simulated"] is False
    assert report["comparison"]["verdict"] == "inconclusive" and report["comparison"]["effect"] == 0
    assert report["candidate"]["digest"] == report["baseline"]["digest"] and report["candidate"]["run_id"] is None
    assert report["n_items"] == report["n_scored"] == report["suite"]["n_items"]
    assert shares == sorted(shares) and shares[-1] == 1
    for side, entry in report["scores"].items():
        path = evals.root / report["eval_id"] / f"scores-{side}.jsonl"
        assert entry == {"path": str(path), "sha256": digest_file(path)}
        assert all(score.prompt and score.status for score in read_scores(path))
    assert evals.get(report["eval_id"]) == report == json.loads(evals.report_path(report["eval_id"]).read_text())
    assert [row["eval_id"] for row in evals.list()] == [report["eval_id"]]
    # The same answers are made again in another evaluation: the protocol is deterministic.
    again = evals.run(**{**SMALL, "baseline": None})
    assert again["comparison"] is None and again["baseline"] is None
    assert again["scores"]["candidate"]["sha256"] == report["scores"]["candidate"]["sha256"]


def test_expert_answers_are_improved_with_every_item_gained(evals):
    suite = experts_against_nothing(evals, "eval_experts")
    report = evals.run(**{**SMALL, "per_family": 2, "max_new_tokens": 64}, eval_id="eval_experts")
    assert report["comparison"]["verdict"] == "improved", report["comparison"]["reasons"]
    assert report["pass_rate"]["candidate"]["value"] == 1 and report["pass_rate"]["baseline"]["value"] == 0
    assert report["flips"] == {"gained": [item.item_id for item in suite.items], "lost": []}
    assert {row["cluster"] for row in report["by_cluster"]} == set(suite.clusters())
    paths = [evals.root / "eval_experts" / f"scores-{side}.jsonl" for side in ("candidate", "baseline")]
    # Evidence re-measures the same numbers from the files alone, and so does the file comparison.
    read = [evidence.read_scores(path) for path in paths]
    pairing = evidence.paired(*read)
    assert len(pairing.differences) == len(suite.items)
    assert pairing.effect == pytest.approx(report["comparison"]["effect"])
    assert compare_files(*paths, n_resamples=1000)["verdict"] == "improved"


def test_a_finished_evaluation_is_not_run_again_and_another_request_is_refused(evals):
    experts_against_nothing(evals, "eval_x", per_family=1)
    call = {**SMALL, "max_new_tokens": 64, "eval_id": "eval_x"}
    first = evals.run(**call)
    assert evals.run(**call) == first
    with pytest.raises(BashGymError) as caught:
        evals.run(**{**call, "max_new_tokens": 32})
    assert caught.value.code == "eval_incomplete" and "decoding" in caught.value.message
    assert evals.get("eval_x") == first


def test_what_the_sandbox_could_not_judge_is_missing_and_never_a_miss():
    suite = suites.load("terminal", per_family=1, limit=3)
    broken = dataclasses.replace(
        suite.items[0].payload,
        spec=msgspec.structs.replace(suite.items[0].payload.spec, build=Build(setup_commands=("false",))),
    )
    items = (dataclasses.replace(suite.items[0], payload=broken), *suite.items[1:])
    suite = dataclasses.replace(suite, items=items)
    answers = [completion(items[0], "true"), completion(items[1], items[1].payload.solution), completion(items[2], "")]
    parts = []
    found = suites.score_items(suite, answers, on_scored=parts.extend)
    assert [score.passed for score in found] == [None, True, False] and parts == found
    assert (found[0].status, found[0].score) == ("error", None) and "setup" in found[0].detail
    assert found[2].status == "format_error"
    with pytest.raises(BashGymError) as caught:
        suites.score_items(suite, [msgspec.structs.replace(answers[0], item_id="x")])
    assert caught.value.code == "eval_incomplete"


def test_an_evaluation_of_a_run_is_bound_to_the_run_and_counts_its_looks(evals, workspace):
    tiny = workspace.model(TINY).path
    for run_id in ("run_a", "run_b"):
        run = workspace.settings.models_dir / run_id
        shutil.copytree(tiny, run / "final")
        (run / "request.json").write_text("{}")
        (run / "model_profile.json").write_text(json.dumps({"run_id": run_id, "heldout_evals": []}))
    (workspace.settings.models_dir / "run_b" / "final" / "note.txt").write_text("another model")
    first = evals.run(**{**SMALL, "model": "run_a"})
    second = evals.run(**{**SMALL, "model": str(workspace.settings.models_dir / "run_b" / "final")}, run_id="run_b")
    assert (first["comparison"]["looks"], second["comparison"]["looks"]) == (1, 2)
    assert (first["candidate"]["run_id"], second["candidate"]["run_id"]) == ("run_a", "run_b")
    run = workspace.settings.models_dir / "run_a"
    link = json.loads((run / "evals" / f"{first['eval_id']}.json").read_text())
    path = evals.report_path(first["eval_id"])
    assert link["report"] == {"path": str(path), "sha256": digest_file(path)}
    assert json.loads((run / "model_profile.json").read_text())["heldout_evals"] == [link]
    for i in range(25):
        attach({**first, "eval_id": f"eval_{i}"}, path, run)
    kept = json.loads((run / "model_profile.json").read_text())["heldout_evals"]
    assert [entry["eval_id"] for entry in kept] == [f"eval_{i}" for i in range(5, 25)]
    with pytest.raises(BashGymError) as caught:
        evals.run(**SMALL, run_id="run_a")
    assert caught.value.code == "digest_mismatch"


def test_sampled_attempts_have_their_seeds_pass_at_k_and_a_noise_floor(evals):
    suite = suites.load("terminal", per_family=1)
    for side in ("candidate", "baseline"):
        answers = [completion(i, i.payload.solution if n else "", n) for i in suite.items for n in range(2)]
        give_answers(evals, "eval_k", side, answers)
    report = evals.run(**{**SMALL, "max_new_tokens": 64}, attempts=2, temperature=0.7, eval_id="eval_k")
    assert report["pass_at_k"]["candidate"] == {"1": pytest.approx(0.5), "2": pytest.approx(1)}
    assert report["comparison"]["noise_floor"] == {"sigma": pytest.approx(0.5**0.5), "n_seeds": 2}
    scores = read_scores(evals.root / "eval_k" / "scores-candidate.jsonl")
    assert len({score.seed for score in scores}) == len(scores) == 2 * len(suite.items)


SCRIPT = (
    "from bashgym.workspace import Workspace; import json, sys; Workspace.open().evals.run(**json.loads(sys.argv[1]))"
)


def scoring_processes(eval_id):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as handle:
                line = handle.read()
        except OSError:
            continue
        if b"bashgym.inference" in line and eval_id.encode() in line:
            found.append(int(pid))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_evaluation_stopped_at_any_moment_leaves_no_process_and_stays_resumable(evals, workspace, tmp_path, number):
    eval_id = f"eval_{tmp_path.name}"
    call = {**SMALL, "per_family": 6, "max_new_tokens": 64, "attempts": 4, "temperature": 1.0, "eval_id": eval_id}
    env = child_env(BASHGYM_DIR=str(workspace.settings.home))
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(call)], env=env, cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    output = evals.root / eval_id / "candidate" / "completions.jsonl"
    end = time.monotonic() + 120
    while not output.is_file() and time.monotonic() < end and child.poll() is None:
        time.sleep(0.02)
    with pytest.raises(BashGymError) as caught:
        evals.run(**call)
    assert caught.value.code == "request_in_progress"
    child.send_signal(number)
    child.wait(timeout=60)
    while scoring_processes(eval_id) and time.monotonic() < end:
        time.sleep(0.05)
    assert not scoring_processes(eval_id)
    assert evals.get(eval_id)["status"] == "interrupted" and evals.list()[0]["status"] == "interrupted"
    with pytest.raises(BashGymError) as caught:
        evals.report_path(eval_id)
    assert caught.value.code == "eval_incomplete"
    before = output.read_bytes()
    keep = {**call, "per_family": 1}
    with pytest.raises(BashGymError) as caught:
        evals.run(**keep)
    assert caught.value.code == "eval_incomplete" and output.read_bytes() == before


def test_a_failed_scoring_process_fails_the_evaluation_with_its_own_error(evals, workspace, tmp_path):
    model = tmp_path / "broken"
    shutil.copytree(workspace.model(TINY).path, model)
    (model / "chat_template.jinja").unlink()
    with pytest.raises(BashGymError) as caught:
        evals.run(**{**SMALL, "model": str(model)}, eval_id="eval_f")
    assert caught.value.code == "template_failed"
    state = evals.get("eval_f")
    assert state["status"] == "failed" and state["error"]["code"] == "template_failed"
