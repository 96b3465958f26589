"""Processes are killed at bad moments; what is left must be true and must be usable."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.process import ProcessIdentity, is_alive
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.store.checkpoints import problems
from bashgym.workspace import Workspace

from .conftest import wait_end, wait_for, wait_step

pytestmark = pytest.mark.train


def _identity(run, which):
    return ProcessIdentity.from_dict(wait_for(lambda: getattr(run.state(), which), what=f"{which} identity"))


def test_a_killed_trainer_fails_the_run_with_the_signal_named(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 50})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, random.randint(5, 20))
    time.sleep(0.15)
    before = max(p["step"] for p in run.metrics())
    os.kill(_identity(run, "trainer").pid, signal.SIGKILL)
    final = wait_end(workspace, run_id)
    assert final["status"] == "failed" and "SIGKILL" in final["error"]["message"]
    assert final["exit"] == {"code": None, "signal": "SIGKILL"}
    assert max(p["step"] for p in run.metrics()) >= before
    assert problems(run.file(final["last_checkpoint"])) == []
    assert final["last_checkpoint"] in final["error"]["hint"]


def test_a_failed_run_continues_from_its_checkpoint_to_the_same_bits(workspace, body):
    from .test_runs import _same, _weights

    body = {**body, "num_epochs": 6, "save_steps": 5}
    straight = workspace.runs.start(body)["run_id"]
    assert wait_end(workspace, straight)["status"] == "completed"
    killed = workspace.runs.start(body)["run_id"]
    wait_step(workspace, killed, 12)
    os.kill(_identity(workspace.runs.locate(killed), "trainer").pid, signal.SIGKILL)
    assert wait_end(workspace, killed)["status"] == "failed"
    resumed = workspace.runs.resume(killed)
    assert resumed["continues"] == killed
    assert wait_end(workspace, resumed["run_id"])["status"] == "completed"
    assert _same(_weights(workspace.runs.locate(straight)), _weights(workspace.runs.locate(resumed["run_id"])))


def test_a_killed_supervisor_is_replaced_and_adopts_the_live_trainer(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 60})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, 3)
    trainer, supervisor = _identity(run, "trainer"), _identity(run, "supervisor")
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(supervisor))
    assert is_alive(trainer), "the trainer outlives its supervisor"
    workspace.runs.get(run_id)
    wait_for(lambda: run.state().supervisor["pid"] != supervisor.pid, what="adoption")
    assert any(e["type"] == "supervisor-adopted" for e in run.events())
    assert _identity(run, "trainer") == trainer, "no second trainer"
    final = wait_end(workspace, run_id)
    assert final["status"] == "completed" and final["exit"]["code"] == 0
    assert sum(e["type"] == "training-started" for e in run.events()) == 1


def test_both_killed_ends_as_failed_with_a_checkpoint(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 60})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, 6)
    for which in ("supervisor", "trainer"):
        os.kill(_identity(run, which).pid, signal.SIGKILL)
    time.sleep(0.2)
    final = wait_end(workspace, run_id)
    assert final["status"] == "failed" and final["last_checkpoint"]
    assert "exit status" in final["error"]["message"]


def test_a_stranger_with_the_trainers_pid_is_never_signalled(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 60})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, 3)
    for which in ("supervisor", "trainer"):
        os.kill(_identity(run, which).pid, signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        state = json.loads(run.file("run_state.json").read_text())
        state["trainer"]["pid"] = stranger.pid
        run.file("run_state.json").write_text(json.dumps(state))
        assert wait_end(workspace, run_id)["status"] == "failed"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_stop_ends_the_whole_process_group_as_cancelled(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 60})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, 2)
    trainer = _identity(run, "trainer")
    begin = time.monotonic()
    workspace.runs.stop(run_id)
    assert time.monotonic() - begin < 10
    assert wait_end(workspace, run_id)["status"] == "cancelled"
    assert not is_alive(trainer)
    members = [p for p in os.listdir("/proc") if p.isdigit() and _pgid(p) == trainer.pid]
    assert members == []
    with pytest.raises(BashGymError) as caught:
        workspace.runs.stop(run_id)
    assert caught.value.code == "run_finished"
    assert workspace.runs.get(run_id)["status"] == "cancelled"


def _pgid(pid):
    try:
        return os.getpgid(int(pid))
    except ProcessLookupError:
        return None


def test_stop_right_after_start_is_cancelled_too(workspace, body):
    run_id = workspace.runs.start(body)["run_id"]
    workspace.runs.stop(run_id)
    assert wait_end(workspace, run_id)["status"] == "cancelled"


def test_a_paused_run_can_be_stopped_and_holds_no_process(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 60})["run_id"]
    wait_step(workspace, run_id, 2)
    workspace.runs.pause(run_id)
    assert wait_end(workspace, run_id)["status"] == "paused"
    run = workspace.runs.locate(run_id)
    assert not is_alive(_identity(run, "trainer"))
    workspace.runs.stop(run_id)
    assert workspace.runs.get(run_id)["status"] == "cancelled"


def test_the_starter_may_die_at_once(workspace, body, tmp_path):
    (tmp_path / "body.json").write_text(json.dumps({**body, "run_id": "run_orphan"}))
    code = (
        "import json, os, signal; from bashgym.workspace import Workspace\n"
        "Workspace.open().runs.start(json.load(open('body.json'))); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=child_env(BASHGYM_DIR=str(workspace.settings.home))
    )
    assert done.returncode == -signal.SIGKILL
    assert wait_end(workspace, "run_orphan")["status"] == "completed"


def test_a_half_written_checkpoint_is_passed_over_on_resume(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 40, "save_steps": 5, "checkpoint_limit": 3})["run_id"]
    wait_step(workspace, run_id, 12)
    workspace.runs.pause(run_id)
    paused = wait_end(workspace, run_id)
    run = workspace.runs.locate(run_id)
    newest = run.file(paused["last_checkpoint"])
    (newest / "optimizer.pt").write_bytes(b"torn")
    answer = workspace.runs.resume(run_id)
    assert newest.name not in answer["message"]
    wait_for(lambda: any(e["type"] == "checkpoint-passed-over" for e in run.events()))
    workspace.runs.stop(run_id)


def test_the_same_idempotency_key_starts_one_run(workspace, body):
    one = workspace.runs.start({**body, "idempotency_key": "k1"})
    two = workspace.runs.start({**body, "idempotency_key": "k1"})
    assert one["run_id"] == two["run_id"] and two["replayed"]
    with pytest.raises(BashGymError):
        workspace.runs.start({**body, "idempotency_key": "k1", "seed": 9})
    assert wait_end(workspace, one["run_id"])["status"] == "completed"


def test_a_second_run_with_the_same_id_is_refused_and_the_first_is_whole(workspace, body):
    workspace.runs.start({**body, "run_id": "run_mine"})
    with pytest.raises(BashGymError) as caught:
        workspace.runs.start({**body, "run_id": "run_mine"})
    assert caught.value.code == "run_exists"
    assert wait_end(workspace, "run_mine")["status"] == "completed"


def test_a_lost_database_does_not_stop_a_run(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 20})["run_id"]
    wait_step(workspace, run_id, 3)
    for path in workspace.settings.home.glob("bashgym.sqlite3*"):
        path.write_bytes(b"garbage" * 1000)
    run = workspace.runs.locate(run_id)
    wait_for(lambda: run.state().status == "completed", what="completion")


def test_a_read_only_home_is_refused_with_the_reason(body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    with pytest.raises(BashGymError) as caught:
        Workspace.open(Settings.from_env({"BASHGYM_DIR": str(blocked)}, tmp_path)).runs.start(body)
    assert caught.value.code == "directory_unwritable"
    assert not list(tmp_path.glob("data/models/*"))


def _serve(tmp_path, home):
    """A server process on a port that it chose, and its base URL."""
    server = subprocess.Popen(
        [sys.executable, "-m", "bashgym", "serve", "--port", "0"],
        cwd=tmp_path,
        env=child_env(BASHGYM_DIR=str(home)),
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in server.stderr:
        if "http://" in line:
            return server, line[line.index("http://") :].split()[0].removesuffix("/api")
    raise AssertionError("the server did not say where it serves")


def test_the_server_may_be_killed_and_its_successor_sees_the_true_end(workspace, body, tmp_path):
    import httpx

    server, base = _serve(tmp_path, workspace.settings.home)
    answer = httpx.post(f"{base}/api/training/start", json={**body, "num_epochs": 40}, timeout=60).json()
    run_id = answer["run_id"]
    wait_step(workspace, run_id, 3)
    server.kill()
    server.wait()
    run = workspace.runs.locate(run_id)
    assert is_alive(_identity(run, "trainer")) and is_alive(_identity(run, "supervisor"))
    os.kill(_identity(run, "supervisor").pid, signal.SIGKILL)
    server, base = _serve(tmp_path, workspace.settings.home)
    try:
        wait_for(
            lambda: any(e["type"] == "supervisor-adopted" for e in run.events()), what="adoption by the new server"
        )
        paused = httpx.post(f"{base}/api/training/{run_id}/pause", timeout=30).json()
        assert paused["success"]
        wait_for(lambda: httpx.get(f"{base}/api/training/{run_id}").json()["status"] == "paused", what="pause")
        assert httpx.post(f"{base}/api/training/{run_id}/resume", timeout=30).json()["success"]
        wait_for(lambda: httpx.get(f"{base}/api/training/{run_id}").json()["status"] == "completed", what="completion")
        assert httpx.get(f"{base}/api/training/{run_id}").json()["exit"] == {"code": 0, "signal": None}
        refused = httpx.post(f"{base}/api/training/{run_id}/stop", timeout=30)
        assert refused.status_code == 409 and refused.json()["detail"]["code"] == "run_finished"
    finally:
        server.kill()
        server.wait()


FULL_DISK = """
import json, sys, time
from bashgym.workspace import Workspace
workspace = Workspace.open()
body = json.load(open("body.json"))
run_id = workspace.runs.start(body, force=["disk_short"])["run_id"]
while (state := workspace.runs.get(run_id))["status"] not in ("completed", "failed"):
    time.sleep(0.1)
print(json.dumps(state))
"""


def test_a_full_disk_ends_the_run_as_disk_full_with_whole_records(workspace, body, tmp_path):
    (tmp_path / "body.json").write_text(json.dumps({**body, "use_lora": False, "save_steps": 2}))
    (tmp_path / "small").mkdir()
    mount = 'mount -t tmpfs -o size=4m tmpfs small && exec "$0" -c "$1"'
    env = child_env(BASHGYM_DIR=str(workspace.settings.home), BASHGYM_MODELS_DIR=str(tmp_path / "small"))
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount, sys.executable, FULL_DISK],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    state = json.loads(done.stdout)
    assert (state["status"], state["error"]["code"]) == ("failed", "disk_full"), done.stderr
    assert state["metrics"]["step"] >= 1 and state["last_checkpoint"] is None
    assert workspace.ledger.find_run(state["run_id"])["status"] == "failed"
