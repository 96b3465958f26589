import pytest

from bashgym.runs.reindex import reindex

from .conftest import wait_end

pytestmark = pytest.mark.train


def test_a_damaged_database_is_set_aside_and_rebuilt_from_the_runs(workspace, body):
    run_id = workspace.runs.start(body)["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    before = workspace.ledger.trend("desktop-local", "unassigned", "train.loss", None)["points"]
    workspace.ledger.close()
    path = workspace.settings.home / "bashgym.sqlite3"
    path.write_bytes(b"not a database" * 500)
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    found = reindex(workspace.settings, workspace.ledger)
    assert found["indexed"] == [run_id] and len(found["set_aside"]) == 1
    assert workspace.ledger.find_run(run_id)["status"] == "completed"
    after = workspace.ledger.trend("desktop-local", "unassigned", "train.loss", None)["points"]
    assert [(p["step"], p["value"]) for p in after] == [(p["step"], p["value"]) for p in before]
    assert reindex(workspace.settings, workspace.ledger)["indexed"] == [run_id]
