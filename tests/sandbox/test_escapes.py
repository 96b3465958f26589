"""Ways out of the sandbox, none of which leads anywhere.

Each attack runs as a model would run it. `PROOF` must not be in its output: it could only get there if the attack had worked.
What an attack could change is looked at afterwards, from outside.
"""
# ruff: noqa: E501  attacks are one line each

import ctypes
import os
import platform
import pty
import socket
import subprocess
import sys
import threading
import time
import uuid

import msgspec
import pytest

from bashgym.envs import watch
from bashgym.envs.process import Stop
from bashgym.envs.rollout import run_episode
from bashgym.envs.sandbox import Limits
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.workspace import fingerprint, fingerprints, remove_tree

QUICK = Limits(wall_s=8)
BESIDE_A_VERIFIER = Limits(wall_s=8, tracing=False)
PROOF = "ESCAPED-7c1"


class Host:
    """A file that anybody on the host may read and write, held open inheritably, and a process with a secret."""

    def __init__(self, folder):
        self.path = folder / "secret.txt"
        self.path.write_text(PROOF)
        self.path.chmod(0o666)
        for parent in self.path.parents:
            if parent.name.startswith("pytest") or parent == folder:
                parent.chmod(0o777)
        self.fds = [os.open(self.path, flag) for flag in (os.O_RDONLY, os.O_WRONLY)]
        for fd in self.fds:
            os.set_inheritable(fd, True)
        self.process = subprocess.Popen(["sleep", "300"], env={"TOKEN": PROOF, "PATH": os.environ["PATH"]})

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    made = Host(tmp_path_factory.mktemp("host"))
    try:
        yield made
    finally:
        made.close()


READS = {
    "a host file by its path": "cat {path}",
    "through /proc/1/root": "cat /proc/1/root{path}",
    "through its own root link": "cat /proc/self/root/..{path}",
    "through every process's root": "cat /proc/[0-9]*/root{path} 2>/dev/null",
    "through the parent's working folder": "cat /proc/$PPID/cwd/../../..{path}",
    "through inherited descriptors": "for f in /proc/self/fd/* /proc/1/fd/*; do timeout 0.2 cat $f </dev/null; done 2>/dev/null | head -c 4000",
    "the environment of a host process": "cat /proc/{pid}/environ",
    "the environment of every process": "cat /proc/*/environ",
    "the memory of a host process": "head -c 1 /proc/{pid}/mem; [ -e /proc/{pid}/maps ] && grep -q sleep /proc/{pid}/maps && echo {proof}",
    "by climbing out": "cat ../../../../../../../..{path}",
    "by a link": "ln -s {path} l && cat l",
    "by a link to a folder": "ln -s / r && cat r{path}",
    "by chroot": "chroot / cat {path}",
    "by a mount": "mkdir m; mount --bind / m && cat m{path}",
    "by a new mount namespace": "unshare -rm sh -c 'mount --bind / /mnt && cat /mnt{path}'",
    "by entering a host namespace": "nsenter -t {pid} -a cat {path}",
    "the kernel's memory": "for f in /dev/mem /dev/kmem /dev/port /proc/kcore; do head -c 1 $f > /dev/null && echo {proof}; done",
    "the kernel's log": "head -c 1 /dev/kmsg >/dev/null && echo {proof}; dmesg && echo {proof}",
    "the host's accounts": "grep -v -e ^root: -e ^user: -e ^nobody: /etc/passwd && echo {proof}",
    "the host's shadow file": "cat /etc/shadow && echo {proof}",
    "the host's homes": "ls -A /root /home/* 2>/dev/null | grep . && echo {proof}",
    "disks": "lsblk 2>/dev/null | grep . && echo {proof}; for d in /dev/sd* /dev/vd* /dev/nvme*; do head -c 1 $d && echo {proof}; done",
}
CHANGES = {
    "a device of one's own": "mknod d b 8 0 && echo {proof}; mknod c c 1 1 && echo {proof}",
    "to become root by setuid": "cp /bin/sh s && chmod u+s s && ./s -p -c 'test $(id -u) = 0' && echo {proof}",
    "to become root by su": "echo | su -c 'echo {proof}' 2>/dev/null",
    "to become root by a call": "python3 -c \"import os; os.setuid(0); print('{proof}')\"",
    "a sysctl": "for f in kernel/panic kernel/core_pattern kernel/hostname vm/overcommit_memory; do echo 1 > /proc/sys/$f && echo {proof}; done",
    "a kernel trigger": "echo b > /proc/sysrq-trigger && echo {proof}",
    "a cgroup": "mkdir /sys/fs/cgroup/x && echo {proof}; mount -t cgroup2 x /mnt && echo {proof}; ls /sys/fs/cgroup/* && echo {proof}",
    "a program of the system": "for f in /usr/bin/env /bin/sh /usr/bin/python3; do echo x > $f && echo {proof}; done",
    "a folder of the system": "for f in /usr/x /etc/x /x /bin/x /dev/x /proc/x; do touch $f && echo {proof}; done",
    "by mounting it writable again": "mount -o remount,rw /usr && echo {proof}; umount /usr && echo {proof}",
    "by killing a host process": "kill -9 {pid} && echo {proof}",
    "by signalling everything": "kill -9 -1; kill -TERM 1; kill -9 1; kill -9 $PPID; echo",
    "by a raw socket": "python3 -c \"import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('{proof}')\"",
    "by a packet socket": "python3 -c \"import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('{proof}')\"",
    "by a socket to the virtual machine's host": "python3 -c \"import socket; socket.socket(40, socket.SOCK_STREAM); print('{proof}')\"",
    "by a socket of the kernel's ciphers": "python3 -c \"import socket; socket.socket(38, socket.SOCK_SEQPACKET); print('{proof}')\"",
    "by tracing a host process": "python3 -c \"import ctypes; print('{proof}' if ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0 else '')\"",
    "by a user namespace of one's own": "unshare -r true && echo {proof}; unshare -Ur sh -c 'mount -t tmpfs x /mnt' && echo {proof}",
    "by loading a module": "insmod x.ko && echo {proof}; modprobe loop && echo {proof}",
    "the clock": "date -s 2001-01-01 && echo {proof}",
    "the host's name": "hostname evil && echo {proof}",
    "the shield against a full memory": "echo -1000 > /proc/self/oom_score_adj && echo {proof}; [ $(cat /proc/self/oom_score_adj) -lt 1000 ] && echo {proof}",
    "the priority": "nice -n -5 true 2>&1 | grep -q . || echo {proof}",
    "its own limits": "ulimit -u 100000 && echo {proof}; ulimit -c unlimited && echo {proof}; ulimit -f unlimited && echo {proof}",
    "inherited descriptors": "for f in /proc/self/fd/* /proc/1/fd/*; do [ -p $f ] || echo changed > $f; done 2>/dev/null",
}


@pytest.mark.parametrize("name", [*READS, *CHANGES])
def test_nothing_of_the_host_is_read_or_changed(bash, host, name):
    text = {**READS, **CHANGES}[name]
    for mark, value in (("{path}", host.path), ("{pid}", host.process.pid), ("{proof}", PROOF)):
        text = text.replace(mark, str(value))
    name_of_host, started = socket.gethostname(), time.monotonic() - time.time()
    result = bash(text, limits=QUICK)
    assert PROOF not in result.stdout, (name, result.stdout[:300])
    assert host.path.read_text() == PROOF and host.process.poll() is None
    assert socket.gethostname() == name_of_host and abs(time.monotonic() - time.time() - started) < 60


CALLS = {"x86_64": (248, 250, 311, 323), "aarch64": (217, 219, 271, 282)}[platform.machine()]
"""add_key, keyctl, process_vm_writev, userfaultfd."""


def test_keyrings_of_the_host_stay_outside(bash):
    """A process has the keys of its session's keyring, however many namespaces it is put into."""
    libc = ctypes.CDLL(None, use_errno=True)
    name = f"bashgym-{uuid.uuid4().hex}".encode()
    key = libc.syscall(CALLS[0], b"user", name, PROOF.encode(), len(PROOF), -3)
    assert key > 0, f"this host keeps keys: errno {ctypes.get_errno()}"
    read = f"b = ctypes.create_string_buffer(99); n = l.syscall({CALLS[1]}, 11, KEY, b, 99, 0); print(n, b.value)"
    inside = f"import ctypes; l = ctypes.CDLL(None); KEY = l.syscall({CALLS[1]}, 10, -3, b'user', {name!r}, 0); {read}; KEY = {key}; {read}"
    outside = subprocess.run([sys.executable, "-c", inside], capture_output=True, text=True)
    try:
        assert PROOF in outside.stdout, "the attack works outside"
        assert bash(f'python3 -c "{inside}"').stdout == "-1 b''\n-1 b''\n"
    finally:
        libc.syscall(CALLS[1], 21, key, 0, 0, 0)


INJECTIONS = {
    "through /proc/PID/mem": "open(f'/proc/{pid}/mem', 'r+b')",
    "through the mem of init": "open('/proc/1/mem', 'r+b')",
    "by ptrace": "assert l.ptrace(16, pid, 0, 0) == 0",
    "by ptrace of init": "assert l.ptrace(16, 1, 0, 0) == 0",
    "by taking init's descriptors": "p = os.pidfd_open(1); assert any(l.syscall(438, p, fd, 0) >= 0 for fd in range(32))",
    "by writing its memory": f"assert l.syscall({CALLS[2]}, pid, None, 0, None, 0, 0) == 0",
    "by user faults": f"assert l.syscall({CALLS[3]}, 1) >= 0",
    "by io_uring": "assert l.syscall(425, 1, ctypes.create_string_buffer(120)) >= 0",
}


@pytest.mark.parametrize("name", INJECTIONS)
def test_a_program_cannot_reach_into_the_verifier_that_runs_it(bash, name):
    """init holds the descriptor that tells the exit status; the verifier is the process that decides it."""
    code = f"import ctypes, os; l = ctypes.CDLL(None); pid = os.getppid(); {INJECTIONS[name]}; print('{PROOF}')"
    (result,) = [bash(f'python3 -c "{code}"; exit 7', limits=BESIDE_A_VERIFIER)]
    assert PROOF not in result.stdout and result.exit_code == 7, result


def test_one_may_trace_ones_own_processes_but_not_beside_a_verifier(bash):
    code = "import ctypes, os; l = ctypes.CDLL(None); pid = os.fork(); pid or (os.pause() if hasattr(os, 'pause') else __import__('signal').pause()); print(l.ptrace(16, pid, 0, 0)); os.kill(pid, 9)"
    assert bash(f'python3 -c "{code}"').stdout == "0\n"
    assert bash(f'python3 -c "{code}"', limits=BESIDE_A_VERIFIER).stdout == "-1\n"


def test_the_second_instruction_set_is_no_way_around_the_filter(bash):
    """`int 0x80` asks by the numbers of 32-bit programs, which the filter does not know."""
    code = "import ctypes, mmap; m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3')); f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))"
    assert "up\n" in bash(f"python3 -c \"{code}; print('up', flush=True)\"").stdout
    result = bash(f"python3 -c \"{code}; f(); print('{PROOF}')\"")
    assert PROOF not in result.stdout and result.exit_code > 128


def test_the_terminal_of_the_caller_stays_outside():
    """Run by a process that has a terminal: what is pushed into it would be read by the shell there."""
    code = (
        "from bashgym.envs.sandbox import run_command; from bashgym.envs.workspace import temporary_workspace\n"
        "import os; assert os.open('/dev/tty', os.O_RDWR)\n"
        "with temporary_workspace({}) as w: print(run_command('exec 3<>/dev/tty && echo ESCAPED-7c1; tty; ls /dev/pts', workdir=w.work).stdout)\n"
        "print('ended')\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    said = b""
    try:
        while chunk := os.read(terminal, 4096):
            said += chunk
    except OSError:
        pass  # the other end is closed
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"ended" in said and PROOF.encode() not in said and b"not a tty" in said, said


def listener(family, kind, address):
    server = socket.socket(family, kind)
    server.bind(address)
    if kind == socket.SOCK_STREAM:
        server.listen()
    server.settimeout(0.1)
    return server


ABSTRACT = f"\0bashgym-{uuid.uuid4().hex}"
NETWORK = {
    "loopback": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
    "loopback of version 6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
    "every interface": (socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),
    "datagrams": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
    "an abstract unix socket": (socket.AF_UNIX, socket.SOCK_STREAM, ABSTRACT),
}


@pytest.mark.parametrize("kind", NETWORK)
def test_no_network_leads_out(bash, kind):
    family, style, address = NETWORK[kind]
    with listener(family, style, address) as server:
        place = server.getsockname() if family != socket.AF_UNIX else address
        if kind == "every interface":
            place = (socket.gethostbyname(socket.gethostname()), place[1])
        code = f"import socket; s = socket.socket({int(family)}, {int(style)}); s.settimeout(2); s.connect({place!r}); s.send(b'x')"
        outside = subprocess.run([sys.executable, "-c", code], capture_output=True)
        take = server.accept if style == socket.SOCK_STREAM else lambda: server.recv(9)
        assert outside.returncode == 0 and take(), "the attack works outside"
        bash(f"python3 - <<'END'\n{code}\nEND", limits=QUICK)
        with pytest.raises(TimeoutError):
            take()


def test_there_is_no_interface_but_its_own_loopback(bash):
    found = bash("tail -n +3 /proc/net/dev | cut -d: -f1; tail -n +2 /proc/net/route; getent hosts example.com")
    assert found.stdout.split() == ["lo"]


BOMBS = {
    "forks": (":(){ :|:& };:; sleep 30", {Stop.TIME, Stop.NONE, Stop.MEMORY}),
    "memory": ('python3 -c "x = []\nwhile True: x.append(bytearray(20_000_000))"', {Stop.NONE, Stop.MEMORY}),
    "memory in many processes": (
        "for i in $(seq 20); do python3 -c 'import time; x = bytearray(60_000_000); time.sleep(9)' & done; wait",
        {Stop.MEMORY},
    ),
    "shared memory": ("head -c 500000000 /dev/zero > /dev/shm/x; du -m /dev/shm/x | cut -f1", {Stop.NONE}),
    "disk": ("while n=$((n + 1)); do head -c 9000000 /dev/zero > f$n; done", {Stop.DISK}),
    "one file": ("head -c 500000000 /dev/zero > f", {Stop.NONE, Stop.DISK}),
    "a temporary file": ("head -c 500000000 /dev/zero > /tmp/x; du -m /tmp/x | cut -f1", {Stop.NONE}),
    "a hundred thousand files": ("python3 -c \"for i in range(100_000): open(f'{i}', 'w').close()\"", {Stop.DISK}),
    "output": ("yes", {Stop.OUTPUT}),
    "output of errors": ("yes >&2", {Stop.OUTPUT}),
    "time, ignoring signals": ("trap '' TERM INT HUP; while :; do :; done", {Stop.TIME, Stop.NONE}),
    "sleeping for ever": ("trap '' TERM INT HUP; sleep 1000", {Stop.TIME}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_within_their_limits(bash, work, name):
    command, ends = BOMBS[name]
    wall_s = 15 if "files" in name or "many" in name else 1.5
    limits = Limits(
        wall_s=wall_s,
        cpu_s=30 if "files" in name else 4,
        processes=32,
        memory_bytes=256 << 20,
        disk_bytes=32 << 20,
        flood_bytes=4 << 20,
    )
    mark = f"mark{uuid.uuid4().hex}"
    begin = time.monotonic()
    result = bash(f"export M={mark}; {command}", limits=limits)
    assert time.monotonic() - begin < wall_s + 6
    assert result.stopped in ends and (result.stopped is Stop.NONE or result.exit_code in (124, 137)), result
    assert len(result.stdout) <= limits.output_bytes and len(result.stderr) <= limits.output_bytes
    if result.stdout.strip().isdecimal():
        assert int(result.stdout) <= 64, "megabytes in a bounded file system"
    # A tenth of a second between two samples, at what this disk takes in that time.
    assert watch.disk_bytes(work) < (1 << 30) or "files" in name
    assert marked(mark) == []


def marked(mark):
    """Processes of the host with `mark` in their command line or environment."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as e, open(f"/proc/{pid}/cmdline", "rb") as c:
                if mark.encode() in e.read() + c.read() and int(pid) != os.getpid():
                    found.append(pid)
        except OSError:
            continue
    return found


SURVIVORS = {
    "a session of its own": "setsid -f sh -c 'sleep 60; echo {mark}'",
    "nohup": "nohup sh -c 'sleep 60; echo {mark}' >/dev/null 2>&1 &",
    "a double fork": "(sh -c '(sleep 60; echo {mark}) &' &)",
    "a daemon": 'python3 -c "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(60)  # {mark}"',
    "one that ignores signals": "(trap '' TERM HUP INT; sh -c 'while :; do sleep 1; done; echo {mark}') &",
    "one that is stopped": "sh -c 'kill -STOP $$; echo {mark}' & sleep 0.2",
}


@pytest.mark.parametrize("name", SURVIVORS)
def test_no_process_survives(bash, name):
    mark = f"mark{uuid.uuid4().hex}"
    begin = time.monotonic()
    bash(f"export M={mark}; {SURVIVORS[name].replace('{mark}', mark)}", limits=QUICK)
    assert time.monotonic() - begin < 8, "nor is it waited for"
    assert marked(mark) == []


def test_a_crash_leaves_no_image_of_memory(bash, work):
    result = bash("ulimit -Hc; python3 -c 'import os; os.abort()'; kill -SEGV $$")
    assert result.stdout == "0\n" and result.exit_code == 128 + 11 and os.listdir(work) == []


HOSTILE_TREES = {
    "a link to the host": "ln -s /etc e; ln -s / root; mkdir d; ln -s ../../../.. d/up",
    "deep folders": "python3 -c \"import os\nfor i in range(1500): os.mkdir('d'); os.chdir('d')\"",
    "unreadable folders": "mkdir -p a/b/c; : > a/b/c/f; chmod 000 a/b/c a/b a",
    "pipes that block readers": "mkfifo p tests conftest.py tox.ini; true",
    "sockets": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('tests')\"",
    "hard links": "echo x > f; for i in $(seq 200); do ln f h$i; done",
    "many files": "python3 -c \"for i in range(10_000): open(f'{i}', 'w').close()\"",
    "names with control characters": "touch \"$(printf 'a\\nb\\033[2J')\" \"$(printf '\\377')\" -- -rf ' '",
    "links in a circle": "ln -s b a; ln -s a b; ln -s . d",
    "files full of holes": "truncate -s 60M tests root",
}


@pytest.mark.parametrize("name", HOSTILE_TREES)
def test_what_is_left_behind_does_not_lead_the_host_astray(bash, work, name):
    bash(HOSTILE_TREES[name], limits=Limits(wall_s=15, disk_bytes=512 << 20))
    assert os.listdir(work), "the attack took place"
    canary = work.parent.parent / f"canary-{uuid.uuid4().hex}"
    canary.write_text("still here")
    seen = []
    look = threading.Thread(
        target=lambda: seen.append(fingerprints(work, ["tests", "root/passwd", "e/passwd", "d", "a", "p"]))
    )
    look.start()
    look.join(20)
    assert seen, "looking at it does not block"
    assert not any(state.startswith("file") for path, state in seen[0].items() if path.endswith("/passwd"))
    assert fingerprint(work, "root/etc") in ("absent", f"below a link: {work}/root")
    remove_tree(work)
    assert not work.exists() and canary.read_text() == "still here" and os.path.isfile("/etc/passwd")
    canary.unlink()


def test_reports_of_hostile_names_are_plain_text():
    """Escapes would reach the reader's terminal, broken UTF-8 would break the encoder of the whole report."""
    spec = EnvironmentSpec.from_dict({"instruction": "x", "verifier": {"command": "true"}})
    attack = 'd="$(printf \'a\\nb\\033[2J\\377\')"; mkdir "$d"; touch "$d/conftest.py"; printf \'\\033]0;owned\\007\\377\\000\''
    result = run_episode(spec, [attack])
    assert result.verifier_status == "tampered" and "conftest.py" in result.detail and result.detail.isprintable()
    assert msgspec.json.decode(msgspec.json.encode(result))["detail"] == result.detail


def test_the_host_itself_is_as_before():
    """After all of the above: it starts processes, and its limits are what they were."""
    assert subprocess.run(["true"]).returncode == 0
    assert len(READS) + len(CHANGES) + len(INJECTIONS) + len(NETWORK) + len(BOMBS) + len(SURVIVORS) >= 70
