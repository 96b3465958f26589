import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from bashgym.core.process import end_group, identity, is_alive


def _sleeper():
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


def test_a_process_is_known_by_pid_and_start_time_and_boot():
    child = _sleeper()
    who = identity(child.pid)
    try:
        assert is_alive(who)
        assert not is_alive(replace(who, start_ticks=who.start_ticks + 1)), "a reused pid is a stranger"
        assert not is_alive(replace(who, boot_id="another boot"))
        assert not is_alive(replace(who, host="elsewhere"))
    finally:
        child.kill()
        child.wait()
    assert not is_alive(who)


def test_a_zombie_does_not_run():
    child = subprocess.Popen(["true"], start_new_session=True)
    who = identity(child.pid)
    time.sleep(0.2)
    assert not is_alive(who)
    child.wait()


def test_end_group_leaves_a_stranger_alone():
    child = _sleeper()
    who = identity(child.pid)
    try:
        end_group(replace(who, start_ticks=who.start_ticks - 5), 0.1)
        time.sleep(0.1)
        assert is_alive(who)
    finally:
        child.kill()
        child.wait()


def test_end_group_ends_children_that_ignore_sigterm():
    code = (
        "import signal, time, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
    grandchild = int(child.stdout.readline())
    end_group(identity(child.pid), 0.3)
    assert child.wait(timeout=5) == -signal.SIGKILL
    for _ in range(50):
        if not is_alive(identity(grandchild)):
            break
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{grandchild}") or not is_alive(identity(grandchild))
