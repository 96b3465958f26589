"""The filter, run by an interpreter of its instructions."""

import errno
import struct

import pytest

from bashgym.envs import seccomp

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003


def verdict(program, arch, number, argument=0):
    """What the kernel does with a call: "allow", "kill", or an errno."""
    data = struct.pack("=iIQ6Q", number, arch, 0, argument, 0, 0, 0, 0, 0)
    code = list(struct.iter_unpack("=HBBI", program))
    value = at = 0
    while True:
        kind, yes, no, k = code[at]
        at += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("=I", data, k)
        elif kind == 0x06:
            action = k & 0xFFFF0000
            return {0x7FFF0000: "allow", 0x80000000: "kill", 0x00050000: k & 0xFFFF}[action]
        else:
            at += yes if (value == k if kind == 0x15 else value >= k) else no


@pytest.mark.parametrize(
    ("machine", "calls"),
    [
        ("x86_64", {"read": 0, "clone": 56, "execve": 59, "socketpair": 53, "kill": 62, "clone3": 435, "openat2": 437}),
        ("aarch64", {"read": 63, "clone": 220, "execve": 221, "socketpair": 199, "kill": 129, "clone3": 435}),
    ],
)
def test_what_programs_need_is_allowed(machine, calls):
    program = seccomp.program(False, machine)
    assert {verdict(program, ARCH[machine], number) for number in calls.values()} == {"allow"}


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {248, 249, 250, 298, 310, 311, 321, 323, 425, 426, 427, 438}),
        ("aarch64", {217, 218, 219, 241, 270, 271, 280, 282, 425, 426, 427, 438}),
    ],
)
def test_what_leads_out_is_refused_and_nothing_else(machine, numbers):
    arch, socket, ptrace = ARCH[machine], *{"x86_64": (41, 101), "aarch64": (198, 117)}[machine]
    free, beside = seccomp.program(True, machine), seccomp.program(False, machine)
    assert {n for n in range(600) if verdict(free, arch, n, 2) != "allow"} == numbers
    assert {n for n in range(600) if verdict(beside, arch, n, 2) != "allow"} == numbers | {ptrace}
    assert {verdict(beside, arch, n) for n in numbers} == {errno.EPERM}
    families = {f for f in range(60) if verdict(free, arch, socket, f) == "allow"}
    assert families == set(seccomp.FAMILIES) and verdict(free, arch, socket, 40) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("machine", ARCH)
def test_other_instruction_sets_are_killed(machine):
    program = seccomp.program(True, machine)
    assert verdict(program, I386, 3) == "kill"
    assert verdict(program, ARCH[machine], 0x40000000 | 250) == "kill"


def test_a_machine_without_a_table_has_no_filter():
    assert seccomp.program(True, "riscv64") == b""
