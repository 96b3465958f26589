"""Who looks at a run that has no supervisor starts one, and only one, however often they look."""

import subprocess
import sys
import time

from bashgym.core.process import identity
from bashgym.core.settings import Settings
from bashgym.runs.reconcile import ensure_supervised
from bashgym.store.run_dir import TERMINAL, RunDir, RunState, RunStatus


def test_readers_who_look_many_times_a_second_start_one_supervisor(tmp_path):
    settings = Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as gone:
        dead = identity(gone.pid).as_dict()
        gone.kill()
    run = RunDir(settings.models_dir / "orphan")
    run.path.mkdir(parents=True)
    run.write_json("request.json", {"strategy": "sft", "report_to": "none"})
    state = RunState(run_id="orphan", strategy="sft", status=RunStatus.RUNNING, supervisor=dead, trainer=dead)
    run.write_state(state)
    started, end = [], time.monotonic() + 30
    while run.state().status not in TERMINAL and time.monotonic() < end:
        started.append(ensure_supervised(run, settings))
        time.sleep(0.01)
    assert run.state().status == RunStatus.FAILED
    assert started[0] is True and sum(started) == 1 and len(started) > 5
    assert ensure_supervised(run, settings) is False, "it has ended"
