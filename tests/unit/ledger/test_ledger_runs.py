"""Registration and status, on SQLite here and on PostgreSQL through tests/postgres."""

import random
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from ledger_cases import CONFIG, P, W, context, finish, register, result, suite, tracked

from bashgym.core.errors import BashGymError, Conflict, Invalid, NotFound
from bashgym.ledger.registry import bucket
from bashgym.ledger.service import Ledger
from bashgym.ledger.transitions import ALLOWED, TERMINAL, Status


def test_tracked_run_registers_its_whole_lineage(ledger: Ledger) -> None:
    ids = tracked(ledger, "run_1")
    assert {k: ids[k] for k in ("workspace_id", "project_id", "experiment_id", "run_id", "context_status")} == {
        "workspace_id": W,
        "project_id": P,
        "experiment_id": "copying",
        "run_id": "run_1",
        "context_status": "verified",
    }
    found = ledger.context(W, P)
    assert [len(found["lineage"][kind]) for kind in found["lineage"]] == [1, 1, 1, 1, 1]
    assert found["lineage"]["dataset_versions"][0]["metadata"] == {"provenance": {"content_digest": "measured"}}
    assert [event["event_type"] for event in found["recent_events"]] == ["training-queued"]
    detail = ledger.run(W, P, "run_1")
    assert detail["attempts"][0]["attempt_id"] == ids["attempt_id"]
    assert detail["run"]["model_version_id"] == "tiny-1"


def test_untracked_run_is_unassigned_and_still_fully_recorded(ledger: Ledger) -> None:
    ids = register(ledger, "run_1")
    assert (ids["workspace_id"], ids["project_id"], ids["context_status"]) == (
        "desktop-local",
        "unassigned",
        "unassigned",
    )
    run = ledger.run("desktop-local", "unassigned", "run_1")["run"]
    assert run["model_version_id"] is None
    assert run["measured"]["model"]["config_digest"] == CONFIG
    assert ledger.project("desktop-local", "unassigned")["tags"] == ["needs-context"]
    health = ledger.context("desktop-local", "unassigned")["health"]
    assert "incomplete_lineage" in [signal["code"] for signal in health["signals"]]


def test_same_registration_twice_is_one_row(ledger: Ledger) -> None:
    assert tracked(ledger, "run_1") == tracked(ledger, "run_1")
    counts = ledger.health()["counts"]
    assert (counts["runs"], counts["attempts"], counts["events"], counts["projects"]) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dataset_content_digest", "0" * 64), ("model_config_digest", "0" * 64), ("environment_runtime_digest", "0" * 64)],
)
def test_an_id_with_another_digest_is_a_conflict_and_leaves_nothing(ledger: Ledger, field: str, value: str) -> None:
    tracked(ledger, "run_1")
    facts = {"model": {}, "dataset": {}, "environment": {}}
    with pytest.raises(Conflict) as caught:
        register(ledger, "run_2", context(**{field: value}), **facts)
    assert caught.value.code == "ledger_identity_conflict"
    assert ledger.find_run("run_2") is None
    assert ledger.health()["counts"]["events"] == 1


def test_changed_wording_is_no_conflict(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    words = {"project_description": "New words", "tags": ["x"], "project_display_name": "N", "experiment_name": "M"}
    register(ledger, "run_2", context(**words, model_source_uri="other/spelling"))
    assert ledger.project(W, P)["description"] == "New words"
    assert ledger.project(W, P)["tags"] == ["x"]


def test_a_digest_that_is_not_the_measured_one_is_refused(ledger: Ledger) -> None:
    with pytest.raises(Invalid) as caught:
        register(ledger, "run_1", context(), dataset={"digest": "0" * 64})
    assert (caught.value.code, caught.value.fields) == ("digest_mismatch", ["dataset_content_digest"])
    assert ledger.projects(W)["projects"] == []


def test_run_id_cannot_be_taken_over_by_another_workspace(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    with pytest.raises(Conflict):
        register(ledger, "run_1", context(workspace_id="team-b"))
    assert ledger.find_run("run_1")["workspace_id"] == W


def test_double_submit_with_an_idempotency_key_is_one_run(ledger: Ledger) -> None:
    replies: list[dict] = []

    def submit(n: int) -> None:
        replies.append(tracked(ledger, f"run_{n}", idempotency_key="key-1"))

    tracked(ledger, "run_first")
    threads = [threading.Thread(target=submit, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({reply["run_id"] for reply in replies}) == 1
    assert len(replies) == 6
    assert ledger.health()["counts"]["runs"] == 2
    with pytest.raises(Conflict):
        tracked(ledger, "run_9", idempotency_key="key-1", recipe_digest="b" * 64)


def test_claims_are_exclusive_replayed_and_given_back(ledger: Ledger) -> None:
    assert ledger.claim_idempotency("k", "d1") is None
    with pytest.raises(Conflict, match="being handled"):
        ledger.claim_idempotency("k", "d1")
    ledger.release_idempotency("k")
    assert ledger.claim_idempotency("k", "d1") is None
    ledger.store_idempotency("k", "d1", {"run_id": "run_1"})
    assert ledger.claim_idempotency("k", "d1") == {"run_id": "run_1"}
    with pytest.raises(Conflict, match="another request"):
        ledger.claim_idempotency("k", "d2")


def test_lifecycle_stamps_and_events(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    for state in ("preparing", "running", "pausing", "paused"):
        ledger.set_status("run_1", state)
    ledger.start_attempt("run_1", 2)
    for state in ("preparing", "running", "stopping"):
        ledger.set_status("run_1", state, attempt=2)
    ledger.set_status("run_1", "cancelled", attempt=2, message="stopped by a person")
    found = ledger.events(W, P)["events"]
    assert [event["source_event_id"] for event in found] == [
        "run_1:queued:1",
        "run_1:started:1",
        "run_1:paused:1",
        "run_1:started:2",
        "run_1:cancelled:2",
    ]
    detail = ledger.run(W, P, "run_1")
    assert detail["run"]["status"] == "cancelled"
    assert detail["run"]["started_at"]
    assert detail["run"]["completed_at"]
    assert [a["status"] for a in detail["attempts"]] == ["paused", "cancelled"]
    assert found[-1]["payload"]["error_summary"] == "stopped by a person"


def test_a_stop_before_the_start_does_not_claim_that_the_run_ran(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    assert ledger.set_status("run_1", "stopping")["status"] == "queued"
    ledger.set_status("run_1", "cancelled")
    run = ledger.run(W, P, "run_1")["run"]
    assert (run["status"], run["started_at"]) == ("cancelled", None)


def test_a_new_attempt_ends_the_lost_one(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    ledger.set_status("run_1", "running")
    ledger.start_attempt("run_1", 2)
    assert [a["status"] for a in ledger.run(W, P, "run_1")["attempts"]] == ["failed", "queued"]


def test_final_payload_is_bounded_sorted_and_without_secrets(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    ledger.set_status("run_1", "running")
    many = {f"m{n:03}": float(n) for n in random.Random(0).sample(range(90), 90)} | {"m000": float("nan"), "b": True}
    key = "sk-ant-" + "a1B2" * 10
    ledger.set_status(
        "run_1", "failed", final_metrics=many, error={"code": "training_failed", "message": f"{key} " * 99}
    )
    event = ledger.events(W, P)["events"][-1]["payload"]
    assert list(event["final_metrics"]) == [f"m{n:03}" for n in range(1, 51)]
    assert len(event["error_summary"]) <= 2000
    assert key not in str(ledger.run(W, P, "run_1"))
    assert key not in str(ledger.events(W, P))


def test_secrets_in_the_request_are_redacted_before_the_database(ledger: Ledger) -> None:
    token = "hf_" + "Ab3" * 12
    request = {"hf_token": token, "note": f"use {token}", "eos_token": "<|im_end|>", "nested": [{"api-key": "x" * 30}]}
    tracked(ledger, "run_1", request=request, origin={"remote": "https://me:pw12345@example.org/x.git"})
    run = ledger.run(W, P, "run_1")["run"]
    assert token not in str(run)
    assert "pw12345" not in str(run)
    assert run["config"]["nested"] == [{"api-key": "[redacted]"}]
    assert run["config"]["eos_token"] == "<|im_end|>"


def test_catch_up_walks_through_unreported_states(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    with pytest.raises(Conflict):
        ledger.set_status("run_1", "completed")
    ledger.set_status("run_1", "completed", catch_up=True)
    types = [event["event_type"] for event in ledger.events(W, P)["events"]]
    assert types == ["training-queued", "training-started", "training-completed"]


def test_unknown_runs_attempts_and_states_are_named(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="run_9"):
        ledger.set_status("run_9", "running")
    tracked(ledger, "run_1")
    ledger.set_status("run_1", "running", attempt=3)
    assert [a["attempt_number"] for a in ledger.run(W, P, "run_1")["attempts"]] == [1, 3]
    with pytest.raises(NotFound, match="attempt 2"):
        ledger.set_status("run_1", "running", attempt=2)
    with pytest.raises(Conflict, match="'flying'"):
        ledger.set_status("run_1", "flying")


_number = iter(range(1_000_000))


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(list(Status)), max_size=8))
def test_the_ledger_accepts_exactly_what_the_table_allows(ledger: Ledger, states: list[Status]) -> None:
    run_id, at = f"run_{next(_number)}", Status.QUEUED
    register(ledger, run_id)
    for state in states:
        stays = state is at or (at is Status.PAUSED and state in (Status.QUEUED, Status.PREPARING))
        if stays or state in ALLOWED[at]:
            assert ledger.set_status(run_id, state)["changed"] is not stays
            at = at if stays else state
        else:
            with pytest.raises(BashGymError) as caught:
                ledger.set_status(run_id, state)
            assert caught.value.code == "ledger_invalid_transition"
    found = ledger.run("desktop-local", "unassigned", run_id)
    assert (found["run"]["status"], found["attempts"][0]["status"]) == (at, at)
    assert bool(found["run"]["completed_at"]) is (at in TERMINAL)


def test_counters_equal_a_recount_after_any_history(ledger: Ledger) -> None:
    rng = random.Random(3)
    tracked(ledger, "run_0")
    suite(ledger)
    for n in range(1, 25):
        tracked(ledger, f"run_{n}")
        if rng.random() < 0.8:
            finish(ledger, f"run_{n}", rng.choice(["completed", "failed", "cancelled"]))
        if rng.random() < 0.5:
            result(ledger, f"run_{n}", 0.5, status=rng.choice(["completed", "failed"]))
        if rng.random() < 0.5:
            ledger.register_artifact(f"run_{n}", kind="adapter", uri="x", sha256="1" * 64, size_bytes=n)
    with ledger.database.read() as tx:
        recount = Counter(bucket(row) for row in tx.all("SELECT * FROM runs"))
        counted = {
            row["name"]: row["n"] for row in tx.all("SELECT name, n FROM counters ") if row["name"].startswith("run/")
        }
        rows = tx.all("SELECT COUNT(*) AS n FROM evaluation_results")[0]["n"]
    assert {name: n for name, n in counted.items() if n} == recount
    assert ledger.health()["counts"]["evaluation_results"] == rows
