"""What the routes promise: one error envelope, strict input, ids that stay inside, logs that are bounded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bashgym.api.server import bind, policy_for
from bashgym.api.tokens import TokenStore
from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.runs import logs
from bashgym.store.run_dir import RunDir, RunStatus

SUITE = {
    "evaluation_suite_id": "suite1",
    "name": "S",
    "task_type": "qa",
    "metric_contract": {"accuracy": {"direction": "maximize"}},
    "code_digest": "1" * 64,
}


def detail(answer: tuple[int, Any, Any]) -> tuple[int, str]:
    """(status, code), having checked that the envelope is whole."""
    status, doc, _ = answer
    assert set(doc) == {"detail"} and set(doc["detail"]) == {"code", "message", "hint", "fields"}
    return status, doc["detail"]["code"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/nothing", (404, "route_not_found")),
        ("GET", "/", (404, "route_not_found")),
        ("GET", "/api/health/", (404, "route_not_found")),
        ("DELETE", "/api/health", (405, "method_refused")),
        ("GET", "/api/training?limit=0", (422, "invalid_field")),
        ("GET", "/api/training?limit=x", (422, "invalid_field")),
        ("GET", "/api/training?lmit=5", (422, "unknown_field")),
        ("GET", "/api/training/nope", (404, "run_not_found")),
        ("GET", "/api/training/..%2f..%2fetc/log", (404, "route_not_found")),
        ("GET", "/api/training/a..b/log", (422, "invalid_field")),
        ("GET", "/api/training/runs/%2e%2e/metrics", (422, "invalid_field")),
        ("GET", "/api/training/nope/log?tail=-1", (422, "invalid_field")),
        ("POST", "/api/training/nope/stop", (404, "run_not_found")),
        ("POST", "/api/devices/nope/preflight", (404, "device_not_found")),
        ("GET", "/api/training/managed/openai/x", (422, "target_other_surface")),
        ("GET", "/api/ledger/projects", (422, "invalid_field")),
        ("GET", "/api/ledger/projects/p?workspace_id=w", (404, "ledger_not_found")),
        ("GET", "/api/ledger/projects/p/compare?workspace_id=w&run_id=a", (400, "ledger_comparison_invalid")),
        ("GET", "/api/training/plan?strategy=nope", (422, "unknown_strategy")),
    ],
)
def test_every_refusal_has_the_one_envelope(api: Any, method: str, path: str, expected: tuple[int, str]) -> None:
    assert detail(api(method, path)) == expected


def test_a_mistyped_query_parameter_is_told_the_nearest(api: Any) -> None:
    assert "limit" in api("GET", "/api/training?lmit=5")[1]["detail"]["hint"]


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe{}", b'{"a":' * 20_000, b"[" * 200_000],
    ids=["list", "null", "torn", "nan", "doubled", "utf16", "deep object", "deep list"],
)  # fmt: skip
def test_a_body_that_is_no_strict_json_object_is_refused(api: Any, body: bytes) -> None:
    answer = api("POST", "/api/training/start", content=body, headers={"Content-Type": "application/json"})
    assert detail(answer) == (400, "body_unreadable")


def test_a_field_alias_is_refused_with_the_right_name(api: Any, tmp_path: Path) -> None:
    body = {
        "strategy": "sft",
        "base_model": "bashgym/tiny-qwen2",
        "dataset_path": str(tmp_path / "x.jsonl"),
        "epochs": 1,
    }
    status, doc, _ = api("POST", "/api/training/start", body)
    assert status == 422 and "num_epochs" in json.dumps(doc) and doc["detail"]["fields"] == ["epochs"]


def test_nothing_is_left_behind_by_a_refused_start(api: Any, settings: Settings) -> None:
    status, doc, _ = api(
        "POST", "/api/training/start", {"base_model": "bashgym/tiny-qwen2", "dataset_path": "/nope.jsonl"}
    )
    assert (status, doc["detail"]["code"]) == (404, "dataset_missing")
    assert not settings.models_dir.exists() or not list(settings.models_dir.iterdir())


def test_health_names_the_state_folder_without_showing_it(api: Any, settings: Settings) -> None:
    _, doc, _ = api("GET", "/api/health")
    assert doc["status"] == "healthy" and len(doc["state_root_digest"]) == 64
    assert str(settings.home) not in json.dumps(doc)


def test_the_log_is_filtered_before_it_is_cut(api: Any, make_run: Callable[..., RunDir]) -> None:
    run = make_run("run_log")
    run.log_path.write_text("".join(f"{'needle' if i < 10 else 'straw'} {i}\n" for i in range(9000)))
    _, doc, _ = api("GET", "/api/training/run_log/log?tail=3&grep=needle")
    assert doc["lines"] == ["needle 7", "needle 8", "needle 9"] and doc["truncated"] is True
    assert len(api("GET", "/api/training/run_log/log?tail=100000")[1]["lines"]) == logs.MAX_TAIL


def test_the_whole_of_a_huge_log_is_refused(api: Any, make_run: Callable[..., RunDir]) -> None:
    run = make_run("run_huge")
    with run.log_path.open("wb") as log:
        log.truncate(logs.MAX_WHOLE_BYTES + 1)
    assert detail(api("GET", "/api/training/run_huge/log?tail=0")) == (413, "log_too_large")


def test_metrics_keep_what_is_not_finite_as_null(api: Any, make_run: Callable[..., RunDir]) -> None:
    make_run("run_nan").metrics_path.write_text(
        '{"step": 1, "ts": 0, "loss": null, "non_finite": {"loss": "NaN"}}\n{"step": 2'
    )
    _, doc, _ = api("GET", "/api/training/runs/run_nan/metrics")
    assert doc["metrics"] == [{"step": 1, "ts": 0, "loss": None, "non_finite": {"loss": "NaN"}}]


def test_stopping_a_finished_run_is_refused(api: Any, make_run: Callable[..., RunDir]) -> None:
    make_run("run_done")
    assert detail(api("POST", "/api/training/run_done/stop")) == (409, "run_finished")


def test_an_artifact_of_a_finished_run_is_listed_and_removed(api: Any, make_run: Callable[..., RunDir]) -> None:
    run = make_run("run_a")
    for name in ("final", "checkpoint-5", "evals"):
        run.file(name).mkdir()
    assert {entry["id"] for entry in api("GET", "/api/training/checkpoints")[1]} == {
        "run_a:final",
        "run_a:checkpoint-5",
    }
    assert api("DELETE", "/api/training/checkpoints/run_a:checkpoint-5")[1] == {
        "deleted": True,
        "id": "run_a:checkpoint-5",
    }
    assert not run.file("checkpoint-5").exists() and run.file("final").is_dir()
    assert run.events()[-1]["type"] == "artifact-deleted"


@pytest.mark.parametrize("status", [s for s in RunStatus if s not in ("completed", "failed", "cancelled")])
def test_an_artifact_of_an_unfinished_run_is_never_removed(
    api: Any, make_run: Callable[..., RunDir], status: RunStatus
) -> None:
    run = make_run("run_live", RunStatus.PAUSED)
    run.file("checkpoint-5").mkdir()
    state = run.state()
    state.status, state.supervisor = status, {"host": "elsewhere", "pid": 1, "start_ticks": 1, "boot_id": "x"}
    run.write_state(state)
    assert detail(api("DELETE", "/api/training/checkpoints/run_live:checkpoint-5")) == (409, "checkpoint_in_use")
    assert run.file("checkpoint-5").is_dir()


@pytest.mark.parametrize(
    "artifact",
    [
        ".",
        "..",
        ":final",
        "run_b:",
        "run_b:.",
        "run_b:..",
        "run_b:evals",
        "run_b",
        "run_b:checkpoint-",
        "..:final",
        "%2e%2e:final",
    ],
)
def test_ids_that_are_no_artifact_remove_nothing(api: Any, make_run: Callable[..., RunDir], artifact: str) -> None:
    run = make_run("run_b")
    run.file("final").mkdir()
    run.file("evals").mkdir()
    status, doc, _ = api("DELETE", f"/api/training/checkpoints/{artifact}")
    assert status in (404, 405, 422) and "detail" in doc
    assert run.file("final").is_dir() and run.file("evals").is_dir()


def test_an_artifact_that_is_a_link_is_not_followed(api: Any, make_run: Callable[..., RunDir], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    run = make_run("run_c")
    run.file("final").symlink_to(outside)
    assert api("GET", "/api/training/checkpoints")[1] == []
    assert detail(api("DELETE", "/api/training/checkpoints/run_c:final")) == (404, "checkpoint_not_found")
    assert outside.is_dir()


@pytest.mark.parametrize("route", ["/api/training/dataset/inspect", "/api/training/runcards/validate"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.jsonl", "data/../../secret.jsonl", "data/link.jsonl", "~/x", "", "a%00b"]
)
def test_files_outside_the_data_folders_are_not_read(api: Any, tmp_path: Path, route: str, path: str) -> None:
    (tmp_path / "secret.jsonl").write_text('{"text": "secret"}\n')
    Path("data").mkdir()
    Path("data/link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    assert detail(api("GET", f"{route}?path={path}")) == (403, "path_outside")


def test_a_page_of_a_dataset_names_what_is_odd(api: Any) -> None:
    Path("data").mkdir()
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}
    rows = [
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
        {"messages": [{"role": "robot", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]},
        {"messages": [{"content": "x"}]},
    ]
    Path("data/d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, doc, _ = api("GET", "/api/training/dataset/inspect?path=data/d.jsonl&offset=1&limit=1")
    assert (doc["total"], len(doc["examples"]), doc["with_warnings_in_slice"]) == (3, 1, 1)
    assert len(doc["examples"][0]["warnings"]) == 2


def test_a_suite_is_created_replayed_and_never_overwritten(api: Any, settings: Settings) -> None:
    from bashgym.ledger.service import Ledger

    ledger = Ledger(settings)
    measured: dict[str, Any] = {"request": {}, "model": {}, "dataset": {}, "environment": {}, "recipe_digest": "0" * 64}
    ledger.register_run(strategy="sft", run_id="run_1", run_dir="x", tracking=None, **measured)
    at = "/api/ledger/projects/unassigned/evaluation-suites?workspace_id=desktop-local"
    assert api("POST", at, SUITE)[1]["replayed"] is False
    assert api("POST", at, SUITE)[1]["replayed"] is True
    assert detail(api("POST", at, {**SUITE, "code_digest": "2" * 64})) == (409, "ledger_identity_conflict")
    assert detail(api("POST", at, {**SUITE, "project_id": "other"})) == (422, "ledger_scope_mismatch")
    assert detail(api("POST", at.replace("suites", "nonsense"), SUITE))[0] == 404


def test_beyond_loopback_a_token_has_to_exist_first(settings: Settings) -> None:
    tokens = TokenStore(settings.home)
    with pytest.raises(BashGymError) as refused:
        policy_for("0.0.0.0", (), tokens)
    assert refused.value.code == "bind_refused"
    token = tokens.create()
    verify = policy_for("0.0.0.0", ("box",), tokens).verify_token
    assert verify is not None and verify(token) and not verify("x")
    assert policy_for("127.0.0.1", (), tokens).verify_token is None


def test_a_port_in_use_is_named(settings: Settings) -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(BashGymError) as refused:
        bind("127.0.0.1", first.getsockname()[1])
    assert refused.value.code == "port_in_use"
