"""Start a training run with torchrun, with what it needs to start well and to fail plainly. Loads no torch."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpbook.core import PACKAGE, InvalidArgument, check_float, check_int, machine, temporary_folder
from dpbook.ranks import recorder
from dpbook.ranks.blame import why_it_failed
from dpbook.ranks.hang import HangWatch
from dpbook.ranks.lifetime import PARENT
from dpbook.ranks.logs import keep, new_folder, tidy
from dpbook.ranks.postmortem import (
    ASKED,
    ASKED_FILE,
    ERROR,
    PROCESS,
    STACK,
    TELL,
    TORCHRUN_REPORT,
    last_attempt,
    text_of,
)  # fmt: skip

WATCH_START, CHECK_CALLS = "DPBOOK_START_TIMEOUT", "DPBOOK_CHECK_CALLS"
"""Variables, both in seconds, in which a rank is told what is to be watched."""
WATCHER = "DPBOOK_WATCHER"
"""The variable with the name of a module that is to watch the script."""
REPORT = "DPBOOK_TORCHRUN_REPORT"
"""The variable with the name of the file for torchrun's report of a failure."""
START_TIMEOUT = 300.0
"""Seconds; torch itself waits for ten minutes with NCCL, for thirty with gloo."""
GRACE = 35.0
"""Seconds that ranks have to end by themselves after a signal, before they are killed; torchrun gives them 30."""
HANG_TIMEOUT = 600.0
"""Seconds without a step of any rank after which a run on one machine is ended, if it was not said."""
TOLD = 5.0
"""Seconds that ranks have to tell where they are, before they are ended because they hang."""
POLL, LOOK = 0.05, 1.0
"""Seconds between two looks: whether it has ended, and whether it hangs."""
TAIL = 200_000
"""Bytes of what torchrun said that are kept, to read from them who failed."""


@dataclass(frozen=True)
class Launch:
    """``program`` on ``nproc`` ranks of this machine, of ``nnodes`` machines that meet at ``endpoint`` (host:port).

    ``program`` is a script and its arguments, or "-m", a module and its arguments. A failed run is started again
    up to ``max_restarts`` times. Ranks and nodes wait for each other for ``start_timeout`` seconds. With
    ``check_calls`` they compare their collectives before they call them, and wait for so many seconds for one that
    does not come (0: no check). A run that hangs (`hang.HangWatch`) is ended after ``hang_timeout`` seconds (0: never;
    None: `HANG_TIMEOUT`, but with several nodes never, since each sees its own ranks alone). What the ranks but rank 0
    print goes to a new folder in ``logs``; without it to one in `logs.LOGS` if the launch fails. Each rank gets
    ``threads`` for computation, by default its share of the cores. With ``torchrun_report`` torchrun's own report of
    a failure is shown. ``watcher`` is a module whose ``install()`` every rank calls before the program begins, and
    ``told`` variables that it reads. Raises `InvalidArgument`.
    """

    program: tuple[str, ...]
    nproc: int
    nnodes: int = 1
    endpoint: str | None = None
    max_restarts: int = 0
    start_timeout: float = START_TIMEOUT
    check_calls: float = 0.0
    threads: int | None = None
    torchrun_report: bool = False
    hang_timeout: float | None = None
    logs: Path | None = None
    watcher: str | None = None
    told: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.program or self.program == ("-m",):
            raise InvalidArgument("program", self.program, "a script, or -m and a module")
        if self.program[0] != "-m" and not Path(self.program[0]).is_file():
            raise InvalidArgument("script", self.program[0], "a file that exists")
        check_int("nproc", self.nproc, 1)
        check_int("nnodes", self.nnodes, 1)
        check_int("max_restarts", self.max_restarts, 0)
        check_float("start_timeout", self.start_timeout, minimum=1)
        check_float("check_calls", self.check_calls, minimum=0)
        check_float("hang_timeout", self.hang_timeout or 0.0, minimum=0)

    @property
    def name(self) -> str:
        """Of the script, or of the module."""
        return Path(self.program[0]).stem if self.program[0] != "-m" else self.program[1]

    @property
    def patience(self) -> float:
        """Seconds for which a run may hang; 0: for ever."""
        if self.hang_timeout is None:
            return HANG_TIMEOUT if self.nnodes == 1 else 0.0
        return self.hang_timeout

    def hang_watch(self, folder: Path) -> HangWatch | None:
        """Who looks for a hang, if anybody."""
        ranks = range(self.nproc * self.nnodes)
        return HangWatch(folder, ranks, self.patience, strict=self.hang_timeout is not None) if self.patience else None

    def command(self, folder: Path, logs: Path) -> list[str]:
        """What is started: torchrun, and under it our guard around the program; the ranks' output goes to ``logs``."""
        if self.nnodes == 1:
            meeting = ["--standalone"]
        else:
            meeting = [f"--nnodes={self.nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}"]
            seconds = math.ceil(self.start_timeout)
            meeting += [f"--rdzv-conf=join_timeout={seconds},read_timeout={seconds}"]
        own = [f"--nproc-per-node={self.nproc}", f"--max-restarts={self.max_restarts}"]
        quiet = ",".join(f"{local}:3" for local in range(1, self.nproc))  # rank 0 speaks for all
        output = [f"--log-dir={logs}", *([f"--redirects={quiet}"] if quiet else [])]
        guarded = ["-m", "dpbook.ranks.guard", str(folder), *self.program]
        return [sys.executable, "-m", "dpbook.ranks.torchrun", *meeting, *own, *output, *guarded]

    def environment(self, folder: Path) -> dict[str, str]:
        """The variables that the ranks get, besides this process's own; what the user has set stays."""
        threads = self.threads or max(1, machine.cores() // self.nproc)
        root = str(PACKAGE.parent)
        return {
            "OMP_NUM_THREADS": str(threads),
            # Without this a restart may meet the store of the attempt before it, and hang.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # Else init_process_group may return before the others have come, and nobody sees where the start hangs.
            "TORCH_DIST_INIT_BARRIER": "1",
            **recorder.VARIABLES,
            **os.environ,
            PARENT: str(os.getpid()),
            WATCH_START: str(self.start_timeout),
            CHECK_CALLS: str(self.check_calls),
            REPORT: str(folder / TORCHRUN_REPORT),
            ASKED_FILE: str(folder / ASKED),
            **({WATCHER: self.watcher} if self.watcher else {}),
            **self.told,
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        }


@dataclass(frozen=True)
class Ended:
    """How a launch ended: an exit ``status``, 0 if all went well, and whether rank 0 ran on this node."""

    status: int
    had_rank_0: bool


def launch(what: Launch, say: Callable[[str], None] = lambda text: None) -> Ended:
    """Carry it out, and return how it ended; where it failed ``say`` is told why, at the end.

    Ctrl-C, SIGTERM and SIGHUP end the ranks, which get SIGTERM; nothing is left running. If a rank had failed before,
    while the others still worked, that is told too. SIGUSR1 is passed on to them, and ignored by a program that does
    not know it; a program that ends well after it may have more to do, so that its status is 128 + SIGUSR1. What rank 0
    writes is seen; the others' output is kept in ``what.logs``, or where the launch fails, and the end of it told.
    """
    with temporary_folder("launch") as folder:
        logs = new_folder(what.logs, "") if what.logs else folder / "logs"
        said: list[tuple[float, bytes]] = []
        begun = time.monotonic()
        child = subprocess.Popen(
            what.command(folder, logs), env=what.environment(folder), stderr=subprocess.PIPE, start_new_session=True
        )
        reader = threading.Thread(target=_pass_on, args=(child, said), daemon=True)
        reader.start()
        signalled, hung, failed = _wait(child, folder, what.hang_watch(folder))
        reader.join(GRACE)
        attempt = last_attempt(folder)
        any_logs = tidy(logs)
        if signalled:
            say(f"ended by {signal.Signals(signalled).name}; no rank is left")
        if failed or (not signalled and (child.returncode or hung)):
            report = text_of(folder / TORCHRUN_REPORT)
            if what.torchrun_report:
                print(report, file=sys.stderr)
            log = _since(said, attempt) + report
            told = _why(what, attempt, time.monotonic() - begun, child.returncode, log, logs, hung=hung)
            kept = (logs if what.logs else keep(logs, what.name)) if any_logs else None
            say(told + (f"\nwhat the other ranks printed is in {kept}" if kept else ""))
        elif not signalled and (folder / ASKED).exists():
            signalled = signal.SIGUSR1
            say("ended after SIGUSR1; it may have more to do")
        status = 128 + signalled if signalled else int(hung) or child.returncode
        return Ended(status, (attempt / STACK.format(0)).exists())


def _why(launch: Launch, folder: Path, seconds: float, status: int, log: str, logs: Path, *, hung: bool) -> str:
    """Why it failed, as far as this node can tell."""
    if launch.nnodes > 1 and (failed := re.search("Rendezvous(Timeout|Connection)Error", log)):
        if failed[1] == "Connection":
            return f"nobody answers as a rendezvous at {launch.endpoint}, for {launch.start_timeout:g} s"
        return f"not all of the {launch.nnodes} nodes came to {launch.endpoint} within {launch.start_timeout:g} s"
    world = launch.nnodes * launch.nproc
    told = [why_it_failed(folder, world, seconds, status, log, logs=logs, hung=hung)]
    if hung:
        told.append(f"no rank had gone on for {launch.patience:g} s, so they were ended (--hang-timeout)")
    if not launch.check_calls and re.search("gloo received|different calls", told[0]):
        told.append("--check-calls tells which rank makes which call")
    if launch.nnodes > 1:
        told.append("That is what this node saw; the first to fail may be a rank of another.")
    return "\n".join(filter(None, told))


def _since(said: list[tuple[float, bytes]], folder: Path) -> str:
    """What came after the ranks that leave word in ``folder`` were started."""
    started = min((path.stat().st_mtime for path in folder.glob(PROCESS.format("*"))), default=0.0)
    return b"".join(chunk for when, chunk in said if when >= started).decode(errors="replace")


def _pass_on(child: subprocess.Popen[bytes], said: list[tuple[float, bytes]]) -> None:
    """Show what torchrun and rank 0 write to stderr as it comes, and keep the end of it, with the time of day."""
    assert child.stderr is not None
    size = 0
    while chunk := os.read(child.stderr.fileno(), 65536):
        os.write(2, chunk)
        said.append((time.time(), chunk))
        size += len(chunk)
        while size - len(said[0][1]) > TAIL:
            size -= len(said.pop(0)[1])


def _wait(child: subprocess.Popen[bytes], folder: Path, watch: HangWatch | None) -> tuple[int, bool, bool]:
    """Wait for the end; a signal that comes meanwhile is passed on.

    Returns that which ended the ranks, or 0, whether they were ended because they hung, and whether one of them had
    failed when the signal came.
    """
    came: list[int] = []
    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, frame: came.append(n)) for number in handled}
    looked = time.monotonic()
    try:
        while child.poll() is None:
            if came and came[0] != signal.SIGUSR1:
                failed = any(last_attempt(folder).glob(ERROR.format("*")))
                _end(child, came)
                return came[0], False, failed
            if came:
                _tell(folder, came.pop(0))
            if watch and time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                if watch.hangs():
                    _let_tell(last_attempt(folder))
                    _end(child, came)
                    return 0, True, False
            time.sleep(POLL)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0, False, False


def _tell(folder: Path, number: int) -> None:
    """Send the ranks of this node a signal, and leave word for those that do not take it yet."""
    (folder / ASKED).touch()
    for path in last_attempt(folder).glob(PROCESS.format("*")):
        with suppress(ProcessLookupError, ValueError):  # it has ended, or is just writing its id
            os.kill(int(path.read_text()), number)


def _let_tell(folder: Path) -> None:
    """Give the ranks time to leave word of where they are: SIGTERM may mean something else to a program, or nothing."""
    (folder / TELL).touch()
    stacks = [folder / STACK.format(path.stem.rpartition("-")[2]) for path in folder.glob(PROCESS.format("*"))]
    until = time.monotonic() + TOLD
    while time.monotonic() < until and not all(map(text_of, stacks)):
        time.sleep(POLL)


def _end(child: subprocess.Popen[bytes], came: list[int]) -> None:
    """Ask torchrun to end its ranks; kill its whole session if it does not in time, or at a second signal."""
    child.send_signal(signal.SIGTERM)
    asked, until = len(came), time.monotonic() + GRACE
    while child.poll() is None:
        if len(came) > asked or time.monotonic() > until:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        time.sleep(POLL)


def default_processes(gpus: Sequence[machine.Gpu]) -> int:
    """One rank per GPU; without any, two where there are two cores: enough to be distributed, and quick."""
    return len(gpus) or min(2, machine.cores())
