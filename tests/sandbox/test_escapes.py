"""Thirty and more ways out of the sandbox, none of which leads anywhere.

Each attack runs as a model would run it. `proof` must not be in its output: it could only get there if the attack had worked.
"""
# ruff: noqa: E501  attacks are one line each

import os
import socket
import subprocess
import threading
import time
import uuid

import pytest

from bashgym.envs import sandbox
from bashgym.envs.sandbox import Limits
from bashgym.envs.workspace import fingerprint, remove_tree

QUICK = Limits(wall_s=8)
PROOF = "ESCAPED-7c1"


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """A file of the host that anybody on it may read, and a process with a secret in its environment."""
    path = tmp_path_factory.mktemp("host") / "secret.txt"
    path.write_text(PROOF)
    path.chmod(0o644)
    for parent in path.parents:
        if parent.name.startswith("pytest"):
            parent.chmod(0o755)
    process = subprocess.Popen(["sleep", "300"], env={"TOKEN": PROOF, "PATH": os.environ["PATH"]})
    try:
        yield path, process.pid
    finally:
        process.kill()
        process.wait()


READS = {
    "a host file by its path": "cat {path}",
    "through /proc/1/root": "cat /proc/1/root{path}",
    "through its own root link": "cat /proc/self/root/..{path}",
    "through every process's root": "cat /proc/[0-9]*/root{path} 2>/dev/null",
    "through the parent's working folder": "cat /proc/$PPID/cwd/../../..{path}",
    "through inherited descriptors": "for f in /proc/self/fd/*; do readlink $f; timeout 0.2 cat $f </dev/null; done 2>/dev/null | head -c 4000",
    "the environment of a host process": "cat /proc/{pid}/environ",
    "the environment of every process": "cat /proc/*/environ",
    "the memory of a host process": "head -c 100 /proc/{pid}/mem",
    "by climbing out": "cat ../../../../../../../..{path}",
    "by a link": "ln -s {path} l && cat l",
    "by a link to a folder": "ln -s / r && cat r{path}",
    "by chroot": "chroot / cat {path}",
    "by a mount": "mkdir m; mount --bind / m && cat m{path}",
    "by a new mount namespace": "unshare -rm sh -c 'mount --bind / /mnt && cat /mnt{path}'",
    "by entering a host namespace": "nsenter -t {pid} -a cat {path}",
    "by a block device": "mknod d b 8 0 && head -c 100 d",
    "the kernel's memory": "head -c 10 /dev/mem /dev/kmem /proc/kcore && echo " + PROOF,
    "the kernel's log": "dmesg && echo " + PROOF,
    "the host's accounts": "grep -v -e ^root: -e ^user: -e ^nobody: /etc/passwd && echo " + PROOF,
    "the host's shadow file": "cat /etc/shadow && echo " + PROOF,
    "the host's home": "ls /root /home/* 2>/dev/null | grep . && echo " + PROOF,
}
CHANGES = {
    "to become root by setuid": "cp /bin/sh s && chmod u+s s && ./s -p -c 'test $(id -u) = 0' && echo " + PROOF,
    "to become root by su": "echo | su -c 'echo {proof}' 2>/dev/null",
    "a sysctl": "echo 1 > /proc/sys/kernel/panic && echo " + PROOF,
    "a cgroup": "mkdir /sys/fs/cgroup/x && echo " + PROOF,
    "a program of the system": "echo x > /usr/bin/env && echo " + PROOF,
    "a folder of the system": "touch /usr/x /etc/x /x /bin/x && echo " + PROOF,
    "by killing a host process": "kill -9 {pid} && echo " + PROOF,
    "by signalling everything": "kill -9 -1; kill -TERM 1; echo",
    "by a raw socket": "python3 -c \"import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('{proof}')\"",
    "by tracing": "python3 -c \"import ctypes; print('{proof}' if ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0 else '')\"",
    "by the kernel keyring": 'python3 -c "import ctypes; r = ctypes.CDLL(None).syscall(250, 0, -4, 0); print(r)" >/dev/null; echo',
    "by a user namespace of one's own": "unshare -r true && echo " + PROOF,
    "by typing into the terminal": "python3 -c \"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x'); print('{proof}')\"",
    "by loading a module": "insmod x.ko && echo " + PROOF,
    "the clock": "date -s 2001-01-01 && echo " + PROOF,
    "the host's name": "hostname evil && echo " + PROOF,
}


@pytest.mark.parametrize("name", [*READS, *CHANGES])
def test_nothing_of_the_host_is_read_or_changed(bash, secret, name):
    path, pid = secret
    text = {**READS, **CHANGES}[name]
    command = text.replace("{path}", str(path)).replace("{pid}", str(pid)).replace("{proof}", PROOF)
    before = time.time()
    result = bash(command, limits=QUICK)
    shown = result.stdout.replace(command, "")
    assert PROOF not in shown, (name, shown[:300])
    assert abs(time.time() - before) < 60 and subprocess.run(["kill", "-0", str(pid)]).returncode == 0
    assert path.read_text() == PROOF


def listener(family, address):
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind(address)
    server.listen()
    server.settimeout(0.1)
    return server


@pytest.mark.parametrize("kind", ["loopback", "every interface", "abstract unix socket", "dns", "metadata service"])
def test_no_network_leads_out(bash, kind):
    name = f"\0bashgym-{uuid.uuid4().hex}"
    if kind == "abstract unix socket":
        server = listener(socket.AF_UNIX, name)
        command = f"python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\\\0{name[1:]}'); print('{PROOF}')\""
    else:
        server = listener(socket.AF_INET, ("0.0.0.0" if kind == "every interface" else "127.0.0.1", 0))
        port = server.getsockname()[1]
        host = socket.gethostbyname(socket.gethostname()) if kind == "every interface" else "127.0.0.1"
        command = {
            "dns": f"timeout 3 getent hosts example.com && echo {PROOF}",
            "metadata service": f"timeout 3 bash -c 'exec 3<>/dev/tcp/169.254.169.254/80' && echo {PROOF}",
        }.get(kind, f"timeout 3 bash -c 'exec 3<>/dev/tcp/{host}/{port}; echo hi >&3' && echo {PROOF}")
    with server:
        assert PROOF not in bash(command, limits=QUICK).stdout
        with pytest.raises(TimeoutError):
            server.accept()


BOMBS = {
    "forks": ":(){ :|:& };:; sleep 3",
    "memory": 'python3 -c "x = []\nwhile True: x.append(bytearray(20_000_000))"',
    "memory in many processes": "for i in $(seq 20); do python3 -c 'import time; x = bytearray(60_000_000); time.sleep(5)' & done; wait",
    "disk": "while :; do head -c 30000000 /dev/zero >> f$((n++)); done",
    "files in tmp": "head -c 500000000 /dev/zero > /tmp/x; ls -l /tmp/x | awk '{exit $5 > 100000000}'",
    "output": "yes",
    "time, ignoring signals": "trap '' TERM INT HUP; while :; do :; done",
    "sleeping for ever": "sleep 1000",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_within_their_limits(bash, name):
    begin = time.monotonic()
    limits = Limits(wall_s=2, cpu_s=2, processes=32, memory_bytes=256 << 20, disk_bytes=64 << 20, flood_bytes=4 << 20)
    result = bash(BOMBS[name], limits=limits)
    assert time.monotonic() - begin < 12
    assert len(result.stdout) <= limits.output_bytes + 10
    assert subprocess.run(["true"]).returncode == 0, "the host can still start processes"


@pytest.mark.parametrize(
    "start",
    [
        "setsid -f sh -c 'sleep 60; echo {mark}'",
        "nohup sh -c 'sleep 60; echo {mark}' >/dev/null 2>&1 &",
        "(sh -c '(sleep 60; echo {mark}) &' &)",
        'python3 -c "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(60)  # {mark}"',
    ],
)
def test_no_process_survives(bash, start):
    mark = f"mark{uuid.uuid4().hex}"
    bash(start.replace("{mark}", mark), limits=QUICK)
    time.sleep(0.2)
    lists = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True)
    assert lists.stdout.strip() == "", "something lives on"


HOSTILE_TREES = {
    "a link to the host": "ln -s /etc e; ln -s / root; mkdir d; ln -s ../../../.. d/up",
    "deep folders": "for i in $(seq 300); do mkdir -p $(printf 'd/%.0s' $(seq 5)); cd d; done",
    "unreadable folders": "mkdir -p a/b/c; : > a/b/c/f; chmod 000 a/b/c a/b a",
    "pipes that block readers": "mkfifo p; mkfifo tests 2>/dev/null; true",
    "hard links": "echo x > f; for i in $(seq 200); do ln f h$i; done",
    "many files": "for d in $(seq 20); do mkdir $d; (cd $d; seq 500 | xargs touch); done",
    "names with control characters": "touch \"$(printf 'a\\nb\\033[2J')\"; touch -- -rf; touch ' '",
}


@pytest.mark.parametrize("name", HOSTILE_TREES)
def test_what_is_left_behind_does_not_lead_the_host_astray(bash, work, name):
    bash(HOSTILE_TREES[name], limits=Limits(wall_s=15, disk_bytes=512 << 20))
    canary = work.parent.parent / f"canary-{uuid.uuid4().hex}"
    canary.write_text("still here")
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append([fingerprint(work, part) for part in ("tests", "root", "d", "a", "p")])
    )
    thread.start()
    thread.join(30)
    assert seen, "looking at it does not block"
    remove_tree(work)
    assert not work.exists() and canary.read_text() == "still here" and os.path.isdir("/etc")
    canary.unlink()


def test_reports_of_hostile_names_are_plain_text(bash):
    result = bash("printf '\\033]0;owned\\007'; printf '\\x00\\xff' >&2; touch $(printf 'x\\ny'); ls")
    assert isinstance(result.stdout, str) and isinstance(result.stderr, str)


def test_there_are_at_least_thirty_attacks():
    assert len(READS) + len(CHANGES) + 5 + len(BOMBS) + 4 + len(HOSTILE_TREES) >= 30
    assert sandbox.Limits().processes < 1000
