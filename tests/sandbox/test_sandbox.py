"""One attack for each guarantee of the sandbox."""

import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs import sandbox
from bashgym.envs.process import Stop
from bashgym.envs.sandbox import Limits

MIB = 1 << 20
ROOT_HOME = pwd.getpwuid(0).pw_dir
TOUCHES = "exec 3<>/dev/tcp/{host}/{port} && echo connected"


def test_exit_code_and_both_streams_come_back(bash):
    result = bash("echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n")


def test_death_by_a_signal_is_128_plus_n(bash):
    assert bash("kill -SEGV $$").exit_code == 139


def test_stdin_reaches_the_command_whole(bash):
    assert bash("wc -c", stdin=b"x" * 300_000).stdout.strip() == "300000"


def test_workspace_persists_and_tmp_does_not(bash):
    bash("echo kept > here; echo lost > /tmp/here")
    assert bash("cat here; ls -A /tmp").stdout == "kept\n"


def test_no_connection_to_a_listener_on_the_host(bash):
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = bash(TOUCHES.format(host="127.0.0.1", port=server.getsockname()[1]))
    assert "connected" not in result.stdout and result.exit_code != 0


def test_no_connection_to_the_world_and_no_interface_but_loopback(bash):
    result = bash(TOUCHES.format(host="192.0.2.1", port=80) + "; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
    assert result.stdout == "lo\n"
    assert result.duration_s < 5


def test_no_abstract_socket_of_the_host(bash):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0bashgym-test-{os.getpid()}")
        server.listen()
        assert f"bashgym-test-{os.getpid()}" not in bash("cat /proc/net/unix").stdout


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/etc/hostname", ROOT_HOME, "/home", "/var", "/proc/1/root/etc/shadow"]
)
def test_host_files_are_not_there(bash, path):
    result = bash(f"cat {path} || ls -A {path}")
    assert result.exit_code != 0 and result.stdout == ""


def test_our_own_source_and_folders_are_not_there(bash):
    result = bash(f"ls {Path(sandbox.__file__).parent} {Path.cwd()}")
    assert result.exit_code != 0 and result.stdout == ""


def test_no_host_environment(bash, monkeypatch):
    monkeypatch.setenv("BASHGYM_DIR", "/canary-7f3a")
    monkeypatch.setenv("HF_TOKEN", "canary-7f3a")
    monkeypatch.setenv("LD_PRELOAD", "")
    shown = bash("env; tr '\\0' '\\n' < /proc/1/environ; cat /proc/1/cmdline").stdout
    assert "canary" not in shown and "BASHGYM" not in shown and "HF_TOKEN" not in shown and "LD_PRELOAD" not in shown


@pytest.mark.parametrize(
    "path", ["/usr/x", "/etc/x", "/x", "/dev/x", "/proc/sys/kernel/hostname", "/verifier/x", "/lib/x"]
)
def test_nothing_outside_is_writable(bash, path):
    assert bash(f"mkdir -p $(dirname {path}); echo pwned > {path}").exit_code != 0
    assert not Path(path).exists() or "pwned" not in Path(path).read_text()


def test_a_link_out_of_the_workspace_leads_nowhere(bash, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("canary")
    result = bash(f"ln -s {secret} link; cat link; echo pwned > link")
    assert "canary" not in result.stdout
    assert secret.read_text() == "canary"


def test_host_processes_are_invisible(bash):
    assert bash("ls /proc | grep -c '^[0-9]'").stdout.strip() in {"2", "3", "4", "5"}
    assert bash(f"kill -0 {os.getpid()}").exit_code != 0 or os.getpid() < 10


def test_no_privilege_and_no_way_to_get_one(bash):
    assert bash("id -u").stdout == "1000\n"
    assert set(bash("grep Cap /proc/self/status | cut -f2").stdout.split()) == {"0" * 16}
    assert bash("grep NoNewPrivs /proc/self/status | cut -f2").stdout == "1\n"
    assert bash("unshare -Ur id -u").exit_code != 0
    assert bash("mount -t tmpfs none /tmp").exit_code != 0


def test_permission_bits_bind(bash):
    assert bash("echo x > a; chmod 000 a; cat a").exit_code == 1


def test_hostname_and_names_are_made_up(bash):
    assert bash("uname -n; whoami; echo $HOME $TZ $LANG").stdout == "sandbox\nuser\n/tmp UTC C.UTF-8\n"


def test_no_terminal_to_type_into(bash):
    assert bash("tty; echo x > /dev/tty").exit_code != 0


def test_sleeping_past_the_deadline_is_ended_in_time(bash):
    result = bash("sleep 60", Limits(wall_s=0.4))
    assert (result.exit_code, result.timed_out, result.stopped) == (124, True, Stop.TIME)
    assert result.duration_s < 3


def test_ignoring_signals_does_not_outlive_the_deadline(bash, work):
    bash("trap '' TERM INT HUP; while :; do date +%N > beat; done", Limits(wall_s=0.4))
    assert _still(work / "beat")


def test_a_background_process_does_not_survive(bash, work):
    result = bash("(setsid bash -c 'while :; do date +%N > beat; done' >/dev/null 2>&1 &); sleep 0.1; exit 3")
    assert result.exit_code == 3
    assert _still(work / "beat")


def test_a_background_process_that_holds_stdout_does_not_delay_the_result(bash):
    result = bash("sleep 30 & echo done")
    assert result.stdout == "done\n" and result.duration_s < 3


def _still(path):
    before = path.read_text()
    time.sleep(0.2)
    return path.read_text() == before


def test_a_fork_bomb_hits_the_process_limit(bash):
    result = bash("f() { f | f & }; f; sleep 0.5; echo alive", Limits(wall_s=5.0, processes=40))
    assert "Resource temporarily unavailable" in result.stderr
    assert result.duration_s < 8


def test_the_process_limit_is_that_of_this_sandbox_alone(bash, work):
    busy = threading.Thread(target=lambda: bash("for i in $(seq 30); do sleep 1 & done; wait", Limits(processes=40)))
    busy.start()
    try:
        time.sleep(0.2)
        assert bash("for i in $(seq 30); do sleep 0.1 & done; wait; echo fine", Limits(processes=40)).stdout == "fine\n"
    finally:
        busy.join()


def test_a_memory_hog_is_refused_memory(bash):
    result = bash("head -c 600M /dev/zero | tail -c 600M | wc -c", Limits(memory_bytes=128 * MIB))
    assert "memory" in result.stderr.lower() or result.stopped is Stop.MEMORY


def test_many_processes_do_not_add_up_to_more_memory(bash):
    hog = "for i in 1 2 3 4 5 6; do (x=$(head -c 60M /dev/zero | tr '\\0' x); sleep 9; echo ${#x}) & done; wait"
    result = bash(hog, Limits(memory_bytes=200 * MIB))
    assert result.stopped is Stop.MEMORY and result.exit_code == 137


def test_filling_tmp_stops_at_its_size(bash):
    result = bash("head -c 50M /dev/zero > /tmp/a; head -c 50M /dev/zero > /dev/shm/a", Limits(tmp_bytes=4 * MIB))
    assert result.stderr.count("No space left") == 2


def test_one_file_cannot_outgrow_its_limit(bash, work):
    bash("yes > big", Limits(file_bytes=MIB))
    assert (work / "big").stat().st_size <= MIB


def test_many_files_cannot_fill_the_disk(bash):
    result = bash("for i in $(seq 200); do head -c 1M /dev/zero > $i; sleep 0.01; done", Limits(disk_bytes=20 * MIB))
    assert result.stopped is Stop.DISK


def test_cpu_time_is_limited(bash):
    result = bash("while :; do :; done", Limits(cpu_s=1, wall_s=20))
    assert result.exit_code == 137 and result.stopped is Stop.NONE


def test_an_output_flood_is_cut_and_ended(bash):
    result = bash("yes", Limits(output_bytes=1000, flood_bytes=MIB))
    assert len(result.stdout) == 1000 and result.output_truncated and result.stopped is Stop.OUTPUT


def test_output_beyond_what_is_kept_does_not_block_the_command(bash):
    result = bash("seq 100000; echo kept > end; cat end >&2", Limits(output_bytes=100))
    assert result.exit_code == 0 and result.stderr == "kept\n" and result.stdout.startswith("1\n2\n")


def test_output_that_is_not_utf8_is_replaced(bash):
    assert bash("printf '\\377ok'").stdout == "\ufffdok"


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800", "echo " + "x" * sandbox.MAX_COMMAND_BYTES])
def test_a_command_that_no_argv_holds_is_refused(bash, command):
    with pytest.raises(BashGymError) as refused:
        bash(command)
    assert refused.value.code == "invalid_field"


def test_the_command_is_data_for_the_launcher(bash):
    assert bash("echo '\"; echo pwned; $(id) $6'").stdout == '"; echo pwned; $(id) $6\n'


def test_a_readonly_mount_is_readable_and_cannot_be_changed(bash, work):
    given = work.parent / "aside"
    (given / "f").write_text("given\n")
    result = bash("cat /given/f; echo x > /given/f; rm -f /given/f; touch /given/new", readonly=[(given, "/given")])
    assert result.stdout == "given\n"
    assert [p.name for p in given.iterdir()] == ["f"] and (given / "f").read_text() == "given\n"


def test_no_descriptor_of_ours_leaks(bash, tmp_path):
    with (tmp_path / "secret").open("w") as open_file:
        os.set_inheritable(open_file.fileno(), True)
        assert set(bash("ls /proc/self/fd").stdout.split()) <= {"0", "1", "2", "3"}
        assert str(tmp_path) not in bash("ls -l /proc/self/fd").stdout


def test_without_bubblewrap_nothing_runs(monkeypatch, tmp_path, work):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BashGymError) as refused:
        sandbox.run_command(f"touch {tmp_path}/ran", workdir=work)
    assert refused.value.code == "sandbox_unavailable" and "apt install bubblewrap" in refused.value.hint
    assert not (tmp_path / "ran").exists()


def test_a_bubblewrap_that_fails_is_an_error_not_a_result(monkeypatch, work):
    broken = work.parent / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{work.parent}:{os.environ['PATH']}")
    with pytest.raises(BashGymError) as refused:
        sandbox.run_command("true", workdir=work)
    assert refused.value.code == "sandbox_unavailable" and "No permissions" in refused.value.message


def test_the_sandbox_dies_with_our_process(work):
    program = (
        "import sys; from pathlib import Path; from bashgym.envs.sandbox import run_command;"
        "run_command('while :; do date +%N > beat; sleep 0.01; done', workdir=Path(sys.argv[1]))"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(work)])
    deadline = time.monotonic() + 10
    while not (work / "beat").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    child.wait()
    time.sleep(0.3)
    assert _still(work / "beat")


def test_a_run_costs_little(bash):
    sandbox.require()
    fastest = min(bash("true").duration_s for _ in range(20))
    assert fastest < 0.1
