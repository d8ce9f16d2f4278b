"""Containment of an answer by the kernel: namespaces, Landlock, another user, limits.

Linux alone. The `attempted` functions return what they could do; the rest is reported as "not contained".
"""

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

GUARDS = {
    "files": "answers can read only Python and dpbook, and write only to their own folder",
    "network": "answers have no network access",
    "processes": "processes that an answer starts end with it",
    "disk": "answers cannot fill the disk",
    "memory": "answers cannot keep memory that belongs to no process",
    "user": "answers run as a separate user",
}
"""Guarantees of the sandbox, in the order in which they are reported."""

FIRST_USER, USERS = 61_200, 4_000
"""Range of user ids that systems leave unassigned."""
MIB = 2**20

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 4096, 16384, 1 << 18, 2, 4
_PDEATHSIG, _NO_NEW_PRIVS, _SUBREAPER, _SECCOMP = 1, 38, 36, 22
_MOUNT_SETATTR, _RECURSIVE, _READ_ONLY = 442, 0x8000, 1
_NO_LONELY_MEMORY = {
    "x86_64": (0xC000003E, 9, (29, 64, 68, 240, 248, 249, 319, 323, 425, 447)),
    "aarch64": (0xC00000B7, 222, (194, 190, 186, 180, 217, 218, 279, 282, 425, 447)),
}
"""Of a machine: its number, that of mmap, and those of shmget, semget, msgget, mq_open, add_key, request_key,
memfd_create, userfaultfd, io_uring_setup, memfd_secret."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ = 0b1101  # execute, read a file, list a folder
_FILE_ONLY = 0b0111 | 1 << 14 | 1 << 15  # execute, write, read, truncate, ioctl


_LIBC = ctypes.CDLL(None, use_errno=True)


def _c(name: str, *args: Any) -> int:
    """Call a function of libc. Raises `OSError`."""
    if sys.platform != "linux":
        raise OSError(f"{name}: not on this system")
    result: int = getattr(_LIBC, name)(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


P = ParamSpec("P")


def attempted(work: Callable[P, None]) -> Callable[P, bool]:
    """Decorate a function that this system may lack the means for: it returns whether it could do its work."""

    @wraps(work)
    def attempt(*args: P.args, **options: P.kwargs) -> bool:
        try:
            work(*args, **options)
        except (OSError, AttributeError):
            return False
        return True

    return attempt


def die_with_parent() -> None:
    with suppress(OSError):
        _c("prctl", _PDEATHSIG, 9, 0, 0, 0)


def adopt_orphans() -> None:
    """Let the children of a descendant that ends become children of this process."""
    with suppress(OSError):
        _c("prctl", _SUBREAPER, 1, 0, 0, 0)


@attempted
def leave_network() -> None:
    """Give this process namespaces of its own for mounts, network and messages."""
    user, group = os.getuid(), os.getgid()
    _c("unshare", _NEWNS | _NEWNET | _NEWIPC | (_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _keep_mounts()


def _keep_mounts() -> None:
    """Let later mounts be visible in this namespace alone."""
    _c("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def raise_loopback() -> None:
    """Let processes of this network namespace reach each other at 127.0.0.1."""
    import fcntl
    import socket

    with suppress(OSError), socket.socket() as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, up and running


def open_way(paths: Iterable[Path]) -> None:
    """Cover each folder above ``paths`` that others may not enter by one that holds nothing else.

    Only for a process that has left everybody's mounts, see `leave_network`.
    """
    for path in paths:
        barred = next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)
        if barred is not None:
            with suppress(OSError):
                handle = os.open(path, os.O_PATH)
                _c("mount", b"none", os.fsencode(barred), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=755,size=1m")
                path.mkdir(parents=True)
                _c("mount", f"/proc/self/fd/{handle}".encode(), os.fsencode(path), None, _MS_BIND | _MS_REC, None)
                os.close(handle)


@attempted
def leave_processes() -> None:
    """Children of this process are in a namespace of their own: with the first of them all the others end."""
    _c("unshare", _NEWPID)


@attempted
def small_disk(folder: Path, size: int) -> None:
    """Put a file system of ``size`` bytes on ``folder``, for this process and its children alone.

    All others are read-only for these, where the kernel can do that (Linux 5.12): Landlock does not keep the owner of
    a file from changing its mode.
    """
    _c("unshare", _NEWNS)
    _keep_mounts()
    with suppress(OSError, AttributeError):
        _c("syscall", _MOUNT_SETATTR, -100, b"/", _RECURSIVE, struct.pack("QQQQ", _READ_ONLY, 0, 0, 0), 32)
    options = f"size={size},nr_inodes=4096,mode=711".encode()
    _c("mount", b"none", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)


@attempted
def confine(readable: Sequence[Path], writable: Sequence[Path]) -> None:
    """By Landlock: below ``readable`` this process may read, below ``writable`` do all; nothing elsewhere."""
    version = _c("syscall", _CREATE_RULESET, None, 0, 1)
    files = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    network, scopes = 0, 0b11 if version >= 6 else 0
    given = struct.pack("QQQ", files, network, scopes)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _c("syscall", _CREATE_RULESET, given[:size], size, 0)
    for paths, allowed in ((readable, _READ), (writable, files)):
        for path in paths:
            _allow(ruleset, path, allowed & files)
    _c("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    _c("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: Path, allowed: int) -> None:
    with suppress(FileNotFoundError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed &= -1 if path.is_dir() else _FILE_ONLY
            _c("syscall", _ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, handle), 0)
        finally:
            os.close(handle)


@attempted
def refuse_lonely_memory() -> None:
    """Refuse memory that is counted for no process, or outlives them, to this process and its children.

    That is shared memory without a file: what it holds stays when a process no longer maps it.
    """
    machine, mmap, others = _NO_LONELY_MEMORY.get(os.uname().machine, (0, 0, ()))
    if not machine:
        raise OSError("its system call numbers are unknown")
    load, equal, at_least, mask, end = 0x20, 0x15, 0x35, 0x54, 0x06
    no, yes = (end, 0, 0, 0x50001), (end, 0, 0, 0x7FFF0000)  # EPERM, as if it was not there
    lines = [(load, 0, 0, 4), (equal, 1, 0, machine), no, (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), no]
    lines += [line for other in others for line in ((equal, 0, 1, other), no)]
    lines += [(equal, 0, 4, mmap), (load, 0, 0, 40), (mask, 0, 0, 0x21), (equal, 0, 1, 0x21), no, yes]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    _c("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    _c("prctl", _SECCOMP, 2, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(program)), 0, 0)


@attempted
def become(user: int) -> None:
    """Switch to ``user`` for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_privileges() -> None:
    with suppress(OSError):
        _c("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
        _c("capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))


def mapped() -> int:
    """Return the bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit(memory: int, seconds: int, processes: int | None) -> None:
    """Limit the mapped bytes, the CPU seconds, the processes of this user, and the sizes of files."""
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 16 * MIB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
        (getattr(resource, "RLIMIT_NPROC", None), processes),
    ):
        if what is not None and most is not None:
            with suppress(OSError, ValueError):
                resource.setrlimit(what, (most, most))
