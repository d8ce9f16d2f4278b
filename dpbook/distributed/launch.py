"""Start a training run with torchrun, with what it needs to start well and to fail plainly. Loads no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbook import machine
from dpbook.distributed.lifetime import PARENT
from dpbook.distributed.traces import who_never_came, why_it_failed
from dpbook.errors import InvalidArgument, check_int

GRACE = 15.0
"""Seconds that ranks have to end by themselves after a signal, before they are killed."""
POLL = 0.2
TAIL = 200_000
"""Bytes of what torchrun said that are kept, to read from them who failed."""


@dataclass(frozen=True)
class Launch:
    """``program`` on ``nproc`` ranks of this machine, of ``nnodes`` machines that meet at ``endpoint`` (host:port).

    ``program`` is a script and its arguments, or "-m", a module and its arguments. A failed run is started again
    up to ``max_restarts`` times. Raises `InvalidArgument`.
    """

    program: tuple[str, ...]
    nproc: int
    nnodes: int = 1
    endpoint: str | None = None
    max_restarts: int = 0

    def __post_init__(self) -> None:
        if not self.program:
            raise InvalidArgument("program", self.program, "a script, or -m and a module")
        if self.program[0] != "-m" and not Path(self.program[0]).is_file():
            raise InvalidArgument("script", self.program[0], "a file that exists")
        check_int("nproc", self.nproc, 1)
        check_int("nnodes", self.nnodes, 1)
        check_int("max_restarts", self.max_restarts, 0)

    def command(self, folder: Path) -> list[str]:
        """What is started: torchrun, and under it our guard around the program."""
        if self.nnodes == 1:
            meeting = ["--standalone"]
        else:
            meeting = [f"--nnodes={self.nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}"]
        own = [f"--nproc-per-node={self.nproc}", f"--max-restarts={self.max_restarts}", "--monitor-interval=0.2"]
        quiet = ",".join(f"{local}:3" for local in range(1, self.nproc))  # rank 0 speaks for all
        logs = [f"--log-dir={folder / 'logs'}", *([f"--redirects={quiet}"] if quiet else [])]
        guard = ["-m", "dpbook.distributed.guard", str(folder)]
        return [sys.executable, "-m", "dpbook.distributed.launcher", *meeting, *own, *logs, *guard, *self.program]

    def environment(self) -> dict[str, str]:
        """The variables that the ranks get, besides this process's own; what the user has set stays."""
        threads = max(1, machine.cores() // self.nproc)
        root = str(Path(__file__).parents[2])
        return {
            "OMP_NUM_THREADS": str(threads),
            # Without this a restart may meet the store of the attempt before it, and hang.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            **os.environ,
            PARENT: str(os.getpid()),
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        }


def run(launch: Launch, say: Callable[[str], None] = lambda text: None) -> int:
    """Carry it out, and return 0, or another status where it failed; ``say`` is then told why, at the end.

    Ctrl-C and SIGTERM are passed on; nothing is left running. What rank 0 writes is seen; the others' output is kept,
    and the end of it told if they fail.
    """
    with tempfile.TemporaryDirectory(prefix="dpbook-launch-") as name:
        folder = Path(name)
        said = bytearray()
        begun = time.monotonic()
        child = subprocess.Popen(
            launch.command(folder), env=launch.environment(), stderr=subprocess.PIPE, start_new_session=True
        )
        reader = threading.Thread(target=_pass_on, args=(child, said), daemon=True)
        reader.start()
        signalled = _wait(child)
        reader.join(GRACE)
        if signalled:
            say(f"ended by {signal.Signals(signalled).name}; no rank is left")
            return 128 + signalled
        if child.returncode:
            log = said.decode(errors="replace")
            why = why_it_failed(folder, launch.nproc, time.monotonic() - begun, child.returncode, log)
            say("\n".join(filter(None, [why, who_never_came(folder, launch.nproc)])))
        return child.returncode


def _pass_on(child: subprocess.Popen[bytes], said: bytearray) -> None:
    """Show what torchrun and rank 0 write to stderr as it comes, and keep the end of it."""
    assert child.stderr is not None
    while chunk := os.read(child.stderr.fileno(), 65536):
        os.write(2, chunk)
        said += chunk
        del said[:-TAIL]


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the end. A signal that comes meanwhile is passed on; it is returned, or 0."""
    came: list[int] = []
    handled = [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, lambda n, frame: came.append(n)) for number in handled}
    try:
        while child.poll() is None and not came:
            time.sleep(POLL)
        if came:
            _end(child)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return came[0] if came else 0


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask torchrun to end its ranks; kill its whole session if it does not in time."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def default_processes(gpus: Sequence[machine.Accelerator]) -> int:
    """One rank per GPU; without any, two where there are two cores: enough to be distributed, and quick."""
    return len(gpus) or min(2, machine.cores())
