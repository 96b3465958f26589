"""Records from outside, comparison, lists and the event log, on both databases."""

import pytest
from ledger_cases import P, W, context, finish, register, result, suite, tracked

from bashgym.core.errors import BashGymError, Conflict, Invalid, NotFound
from bashgym.ledger.service import Ledger


def test_a_retry_without_an_id_is_a_replay(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    body = {"experiment_id": "copying", "decision_type": "promote", "outcome": "yes", "evidence_refs": ["run_1"]}
    first = ledger.create(W, P, "decisions", body)
    again = ledger.create(W, P, "decisions", {**body, "created_at": "2031-01-01T00:00:00Z"})
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["record"] == again["record"]
    assert ledger.health()["counts"]["decisions"] == 1


def test_the_same_id_with_other_content_is_a_conflict_that_names_it(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    suite(ledger)
    assert suite(ledger, name="Another name")["replayed"]
    with pytest.raises(Conflict) as caught:
        suite(ledger, code_digest="0" * 64)
    assert (caught.value.code, caught.value.fields) == ("ledger_identity_conflict", ["code_digest"])


def test_an_idempotency_key_gives_the_first_reply_again(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    body = {"run_id": "run_1", "kind": "adapter", "uri": "final", "sha256": "1" * 64, "size_bytes": 5}
    first = ledger.create(W, P, "artifacts", body, idempotency_key="k")
    again = ledger.create(W, P, "artifacts", body, idempotency_key="k")
    assert again == {**first, "replayed": True}
    with pytest.raises(Conflict):
        ledger.create(W, P, "artifacts", {**body, "size_bytes": 6}, idempotency_key="k")


@pytest.mark.parametrize(
    ("collection", "change", "code", "field"),
    [
        ("artifacts", {"colour": 1}, "unknown_field", "colour"),
        ("artifacts", {"sha256": "A" * 64}, "invalid_field", "sha256"),
        ("artifacts", {"size_bytes": -1}, "invalid_field", "size_bytes"),
        ("artifacts", {"size_bytes": True}, "invalid_field", "size_bytes"),
        ("artifacts", {"run_id": "../x"}, "invalid_field", "run_id"),
        ("artifacts", {"run_id": None}, "invalid_field", "run_id"),
        ("artifacts", {"workspace_id": "other"}, "ledger_scope_mismatch", "workspace_id"),
        ("artifacts", {"run_id": "run_9"}, "ledger_not_found", "run_id"),
        ("artifacts", {"attempt_id": "nope"}, "ledger_not_found", "attempt_id"),
        ("artifacts", {"created_at": "yesterday"}, "invalid_field", "created_at"),
        ("artifacts", {"metadata": {"a": [{"Api-Key": "x"}]}}, "ledger_payload_unsafe", "metadata"),
        ("artifacts", {"metadata": {"openai_api_key": "x"}}, "ledger_payload_unsafe", "metadata"),
        ("artifacts", {"metadata": {"note": "ghp_" + "a1B2" * 9}}, "ledger_payload_unsafe", "metadata"),
        ("artifacts", {"metadata": {"note": "x" * 140_000}}, "ledger_payload_unsafe", "metadata"),
        ("artifacts", {"metadata": {"x": float("nan")}}, "ledger_payload_unsafe", "metadata"),
        ("artifacts", {"metadata": {"s": "\ud800"}}, "ledger_payload_unsafe", "metadata"),
        ("artifacts", {"uri": "https://me:secret1@host/x"}, "ledger_payload_unsafe", "uri"),
    ],
)
def test_bad_bodies_are_refused_and_leave_nothing(
    ledger: Ledger, collection: str, change: dict, code: str, field: str
) -> None:
    tracked(ledger, "run_1")
    body = {"run_id": "run_1", "kind": "adapter", "uri": "final", "sha256": "1" * 64, "size_bytes": 5}
    with pytest.raises(BashGymError) as caught:
        ledger.create(W, P, collection, {**body, **change})
    assert (caught.value.code, caught.value.fields[0]) == (code, field)
    assert ledger.health()["counts"]["artifacts"] == 0


def test_deeply_nested_payload_is_refused_without_recursion(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    deep: dict = {}
    for _ in range(20_000):
        deep = {"a": deep}
    with pytest.raises(Invalid, match="levels deep"):
        ledger.create(
            W, P, "events", {"event_type": "x", "source_system": "s", "source_event_id": "1", "payload": deep}
        )


def test_a_reference_into_another_project_is_not_found(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    register(ledger, "run_2", context(project_id="other"))
    suite(ledger)
    with pytest.raises(NotFound):
        result(ledger, "run_2", 0.5)


def test_comparison_uses_the_latest_completed_result_and_the_direction(ledger: Ledger) -> None:
    for run_id in ("base", "cand", "alone"):
        tracked(ledger, run_id)
        finish(ledger, run_id)
    suite(ledger)
    suite(ledger, "terminal-2", code_digest="0" * 64)
    result(ledger, "base", 0.1)
    result(ledger, "base", 0.2)
    result(ledger, "base", 0.9, status="failed")
    first = result(ledger, "cand", 0.5)["record"]["evaluation_result_id"]
    result(ledger, "cand", 0.6)
    result(ledger, "alone", 0.99, "terminal-2")
    found = ledger.compare(W, P, ["base", "cand", "alone"])
    (comparison,) = found["comparisons"]
    assert (comparison["evaluation_suite_id"], comparison["baseline_run_id"]) == ("terminal-1", "base")
    (metric,) = comparison["metrics"]
    assert (metric["metric_name"], metric["direction"]) == ("pass_rate", "maximize")
    assert metric["values"]["base"] == {"value": 0.2, "delta_from_baseline": 0.0}
    assert metric["values"]["cand"]["delta_from_baseline"] == pytest.approx(0.4)
    assert found["not_comparable_run_ids"] == ["alone"]
    pinned = ledger.compare(W, P, ["base", "cand"], result_ids=[first])
    assert pinned["comparisons"][0]["result_ids"]["cand"] == first


def test_simulated_runs_are_never_compared(ledger: Ledger) -> None:
    for run_id, simulated in (("base", False), ("sim", True)):
        tracked(ledger, run_id, is_simulation=simulated)
    suite(ledger)
    result(ledger, "base", 0.1)
    result(ledger, "sim", 1.0)
    found = ledger.compare(W, P, ["base", "sim"])
    assert found["comparisons"] == []
    assert {"run_id": "sim", "reason": "simulated"} in found["not_comparable"]


@pytest.mark.parametrize("ids", [[], ["a"], ["a", "a"], [f"r{n}" for n in range(21)]])
def test_comparison_needs_two_to_twenty_runs(ledger: Ledger, ids: list[str]) -> None:
    with pytest.raises(BashGymError) as caught:
        ledger.compare(W, P, ids)
    assert caught.value.code == "ledger_comparison_invalid"


def test_direction_in_its_second_shape(ledger: Ledger) -> None:
    for run_id in ("base", "cand"):
        tracked(ledger, run_id)
    suite(ledger, metric_contract={"primary_metric": "pass_rate", "metric_direction": "minimize"})
    result(ledger, "base", 0.1)
    result(ledger, "cand", 0.2)
    assert ledger.compare(W, P, ["base", "cand"])["comparisons"][0]["metrics"][0]["direction"] == "minimize"


def test_runs_are_newest_first_by_sequence_when_the_clock_jumps_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked(ledger, "run_1")
    monkeypatch.setattr("bashgym.ledger.registry.utc_now", lambda: "1999-01-01T00:00:00.000Z")
    tracked(ledger, "run_2")
    monkeypatch.undo()
    tracked(ledger, "run_3")
    ledger.set_status("run_2", "running")
    assert [run["run_id"] for run in ledger.runs(W, P)["runs"]] == ["run_3", "run_2", "run_1"]
    assert [run["run_id"] for run in ledger.runs(W, P, status="queued")["runs"]] == ["run_3", "run_1"]
    assert [run["run_id"] for run in ledger.recent_runs(limit=2)] == ["run_3", "run_2"]
    with pytest.raises(Invalid):
        ledger.runs(W, P, status="flying")
    with pytest.raises(NotFound):
        ledger.runs(W, "no-such-project")


def test_context_shows_the_newest_events_and_true_signals(ledger: Ledger) -> None:
    for n in range(6):
        tracked(ledger, f"run_{n}")
        finish(ledger, f"run_{n}", "failed" if n == 0 else "completed")
    suite(ledger)
    for n in range(1, 6):
        result(ledger, f"run_{n}", 0.5)
    found = ledger.context(W, P, recent_limit=2)
    assert [event["run_id"] for event in found["recent_events"]] == ["run_5", "run_5"]
    signals = {signal["code"]: signal for signal in found["health"]["signals"]}
    assert set(signals) == {"failed_runs_present", "terminal_without_artifact"}
    assert found["health"]["status"] == "healthy"
    assert found["health"]["counts"]["runs"]["completed"] == 5
    assert ledger.context(W, P, recent_limit=20)["health"]["status"] == "attention"


def test_event_pages_lose_nothing_and_know_their_end(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    for n in range(9):
        ledger.append_event(W, P, event_type="note", source_system="test", source_event_id=f"n{n}", payload={"n": n})
    cursor, seen = 0, []
    while True:
        page = ledger.events(W, P, after_cursor=cursor, limit=5)
        assert page == ledger.events(W, P, after_cursor=cursor, limit=5)
        seen += [event["cursor"] for event in page["events"]]
        cursor = page["next_cursor"]
        if not page["has_more"]:
            break
    assert seen == list(range(1, 11))
    assert ledger.events(W, P, after_cursor=10)["next_cursor"] == 10


def test_an_event_again_is_a_replay_and_changed_a_conflict(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    body = {"event_type": "note", "source_system": "test", "source_event_id": "n1", "payload": {"n": 1}}
    assert not ledger.append_event(W, P, **body)["replayed"]
    assert ledger.append_event(W, P, **body)["replayed"]
    with pytest.raises(Conflict):
        ledger.append_event(W, P, **{**body, "payload": {"n": 2}})


@pytest.mark.parametrize(
    ("tamper", "bad"),
    [
        ("UPDATE events SET payload = '{\"n\":7}' WHERE cursor = 3", 3),
        ("UPDATE events SET created_at = '1999-01-01T00:00:00Z' WHERE cursor = 2", 2),
        ("DELETE FROM events WHERE cursor = 2", 2),
        ("DELETE FROM events WHERE cursor = 4", 4),
        ("UPDATE events SET cursor = cursor + 10 WHERE cursor = 4", 4),
    ],
)
def test_tampering_with_the_log_is_found(ledger: Ledger, tamper: str, bad: int) -> None:
    tracked(ledger, "run_1")
    for n in range(3):
        ledger.append_event(W, P, event_type="note", source_system="test", source_event_id=f"n{n}", payload={"n": n})
    assert ledger.verify_chain()["ok"]
    with ledger.database.write() as tx:
        tx.run(tamper)
    verdict = ledger.verify_chain()
    assert (verdict["ok"], verdict["first_bad_cursor"]) == (False, bad)


def test_health_names_the_schema_and_the_counts(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    found = ledger.health()
    assert (found["status"], found["foreign_keys"], found["last_event_cursor"]) == ("healthy", True, 1)
    assert found["migration_versions"] == ["0001", "0002"]
    assert found["database_bytes"] > 0
