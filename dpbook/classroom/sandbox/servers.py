"""The servers that fork answers' processes: started once, and shared by all judges."""

import contextlib
import enum
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from dpbook.classroom.sandbox import containment
from dpbook.core import PACKAGE, DpbookError, machine
from dpbook.ranks import all_processes, family

SERVER = "dpbook.classroom.sandbox.server"
"""The module that a server runs."""
WITH_TORCH = ("ch10", "ch11")
"""The chapters whose exercises need torch in the answer's process."""
NUMPY = (
    "dpbook.collectives", "dpbook.replicas", "dpbook.overlap", "dpbook.planning", "dpbook.figures", "dpbook.classroom",
    *(f"dpbook.book.{path.name}" for path in sorted((PACKAGE / "book").glob("ch*")) if path.name not in WITH_TORCH),
)  # fmt: skip
TORCH = (
    "torch", "torch._dynamo", "torch.utils.data", "dpbook.ddp", "dpbook.runs.trainer",
    "dpbook.book.ch10.trials", "dpbook.book.ch11.loops", "dpbook.book.sim.device",
)  # fmt: skip
OTHER_HASHES = ("03.2",)
"""The tasks whose answers are also tried in an interpreter whose strings have other hashes."""
Kind = enum.Enum("Kind", ["NUMPY", "TORCH", "OTHER_HASHES"])
"""A kind of server."""
MODULES = {Kind.NUMPY: NUMPY, Kind.TORCH: (*NUMPY, *TORCH), Kind.OTHER_HASHES: ("dpbook.replicas", "dpbook.book.ch03")}
"""The modules that a server has loaded."""
MEMORY = {False: 512 * containment.MIB, True: 4096 * containment.MIB}
"""Bytes that a process may map beyond what its server has, without and with torch, whose threads reserve much."""
HELD = 512 * containment.MIB
"""Bytes that all processes of an answer may hold beyond what they share with their server."""
PATIENCE = 10.0
"""Seconds that killed processes may take to end."""


class AnswerNamespace:
    """The namespace of one answer, and a folder for its processes. Closing it ends them."""

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self._sock, self._folder = sock, folder
        reply = json.loads(sock.recv(4096) or b"null")
        if reply is None:
            raise DpbookError("the server of answers has ended")
        self.process: int = reply["keeper"]
        self._handle = os.pidfd_open(self.process)
        self.guards = {"processes": bool(reply["processes"]), "network": bool(reply["network"])}

    def process_of(self) -> socket.socket:
        """Return the socket connected to a new process of the answer."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._sock, [b"+"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End all processes, whatever they do."""
        if not self.guards["processes"]:
            end_family(self.process)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        select.select([self._handle], [], [], PATIENCE)  # it ends when all others have
        os.close(self._handle)
        self._sock.close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Servers:
    """A server without torch, and one each with it and with other hashes where they are needed.

    Forked processes share them. ``seed`` fixes the hashes of strings, and with them the order of sets.
    """

    def __init__(self, torch: bool = False, other_hashes: bool = False, seed: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dpbook-", ignore_cleanup_errors=True)
        Path(self._folder.name).chmod(0o711)
        self._numbers = itertools.count()
        kinds = [Kind.NUMPY, *([Kind.TORCH] if torch else []), *([Kind.OTHER_HASHES] if other_hashes else [])]
        hashes = (seed % 2**31, seed % 2**31 + 1)
        self._started = {
            kind: _start(MODULES[kind], MEMORY[kind is Kind.TORCH], hashes[kind is Kind.OTHER_HASHES]) for kind in kinds
        }

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *error: object) -> None:
        for control, server in self._started.values():
            control.close()
            server.kill()
            server.wait()
        self._folder.cleanup()

    def check(self) -> None:
        """Raise `DpbookError` if a server has ended, because answers would then get no points."""
        if any(server.poll() is not None for _, server in self._started.values()):
            raise DpbookError(
                "the server that runs the answers ended during grading (its error is above): no marks were written"
            )

    def keeper(self, kind: Kind = Kind.NUMPY) -> AnswerNamespace:
        """Return a new keeper. Raises `DpbookError` where its server has ended."""
        number = next(self._numbers)
        folder = Path(self._folder.name) / f"{os.getpid()}-{number}"
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)
        user = containment.FIRST_USER + (os.getpid() * 31 + number) % containment.USERS
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                cores = sorted(os.sched_getaffinity(0))
                asked = json.dumps({"folder": str(folder), "user": user, "cores": cores}).encode()
                socket.send_fds(self._started[kind][0], [asked], [theirs.fileno()])
            except OSError:
                raise DpbookError("the server of answers has ended") from None
        return AnswerNamespace(ours, folder)


def _start(modules: tuple[str, ...], memory: int, hashes: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a server that imports nothing from the current folder (-P), which may be that of a submission."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = filter(None, [str(PACKAGE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH", "LC_ALL") if name in os.environ}
    settings = {
        **machine.MALLOC_SETTINGS, **keep, **one_thread, "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo", "MPLBACKEND": "agg",
        "PYTHONHASHSEED": str(hashes),
    }  # fmt: skip
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", SERVER, str(theirs.fileno()), str(memory), *modules],
            pass_fds=[theirs.fileno()], env=settings, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return ours, server


def end_family(process: int) -> None:
    """Kill all descendants of a process, repeatedly, until none is left."""
    for _ in range(100):
        rest = [each for each in family(process, all_processes()) if each != process]
        if not rest:
            return
        for each in rest:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)


def held_and_computed(process: int, known: Collection[int]) -> tuple[int, float]:
    """Return the memory and the time of all that ``process`` has started.

    They are the bytes that each has beyond those it got from ``process``, and the CPU seconds of all but the ``known``.
    """
    found = family(process, all_processes())
    had = _own(process)
    seconds = sum(seconds for each, seconds in found.items() if each != process and each not in known)
    return sum(max(0, _own(each) - had) for each in found), seconds


def _own(process: int) -> int:
    """Return the bytes that a process has mapped to no file."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            resident, shared = map(int, file.read().split()[1:3])
    except (OSError, ValueError):  # it has just ended
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
