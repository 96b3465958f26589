"""The system calls that a sandbox refuses, as a classic BPF program for `bwrap --seccomp`.

Covers what namespaces leave open: keyrings, which a process inherits from the host's session; sockets of families that no network
namespace holds back (vsock reaches a virtual machine's host); another process's descriptors and memory; and interfaces with a
long history of kernel faults that nobody's task needs. x86_64 and aarch64; other machines have no filter. Programs of a second
instruction set (32 bit) are killed. Numbers: `asm/unistd.h`; program: `seccomp(2)`, Linux' `Documentation/networking/filter`.
"""

from __future__ import annotations

import errno
import platform
import struct
from functools import cache

FAMILIES = (1, 2, 10, 16)
"""Socket families allowed: unix, IPv4, IPv6, netlink."""
_MACHINES = {
    "x86_64": (0xC000003E, 41, (248, 249, 250, 298, 310, 311, 321, 323), 101),
    "aarch64": (0xC00000B7, 198, (217, 218, 219, 241, 270, 271, 280, 282), 117),
}
"""AUDIT_ARCH, socket, refused, ptrace. Refused: add_key, request_key, keyctl, perf_event_open, process_vm_readv,
process_vm_writev, bpf, userfaultfd."""
_EVERYWHERE = (425, 426, 427, 438)
"""Refused with the same number on all machines: io_uring_setup, _enter, _register, pidfd_getfd."""
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


@cache
def program(tracing: bool, machine: str = platform.machine()) -> bytes:
    """The filter, empty where there is none for `machine`. Without `tracing`, ptrace is refused too."""
    if machine not in _MACHINES:
        return b""
    arch, socket, refused, ptrace = _MACHINES[machine]
    numbers = (*refused, *_EVERYWHERE, *(() if tracing else (ptrace,)))
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for number in numbers:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code += [(_EQUAL, 1, 0, socket), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 16)]
    for family in FAMILIES:
        code += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    code.append((_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT))
    return b"".join(struct.pack("=HBBI", *line) for line in code)
