"""Carry out a launch: start it, pass on what is said and signalled, watch it, tell why it failed. Loads no torch."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpbook.core import handling_signals, temporary_folder
from dpbook.ranks import failure_files
from dpbook.runs.launch.command import Launch
from dpbook.runs.launch.hang_detector import HangWatch
from dpbook.runs.launch.logs import keep, new_folder, tidy
from dpbook.runs.launch.memory_watch import MemoryWatch
from dpbook.runs.postmortem.rules import why_it_failed

GRACE = 35.0
"""Seconds that ranks have to end by themselves after a signal, before they are killed; torchrun gives them 30."""
TOLD = 5.0
"""Seconds that ranks have to tell where they are, before they are ended because they hang."""
POLL, LOOK = 0.05, 1.0
"""Seconds between two looks: whether it has ended, and whether it hangs."""
TAIL = 200_000
"""Bytes of what torchrun said that are kept, to read from them who failed."""


@dataclass(frozen=True)
class Ended:
    """How a launch ended: an exit ``status``, 0 if all went well, and whether rank 0 ran on this node."""

    status: int
    had_rank_0: bool


def launch(what: Launch, say: Callable[[str], None] = lambda text: None, came: list[int] | None = None) -> Ended:
    """Carry it out, and return how it ended; where it failed ``say`` is told why, at the end.

    Ctrl-C, SIGTERM and SIGHUP end the ranks, which get SIGTERM; nothing is left running. If a rank had failed before,
    while the others still worked, that is told too. SIGUSR1 is passed on to them, and ignored by a program that does
    not know it; a program that ends well after it may have more to do, so that its status is 128 + SIGUSR1. In ``came``
    are the signals that came before, and were not heeded. What rank 0 writes is seen; the others' output is kept in
    ``what.logs``, or where the launch fails, and the end of it told.
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
        memory = MemoryWatch(folder, range(what.nproc * what.nnodes))
        signalled, hung, failed = _wait(child, folder, what.hang_watch(folder), memory, [] if came is None else came)
        reader.join(GRACE)
        attempt = failure_files.last_attempt(folder)
        any_logs = tidy(logs)
        if signalled:
            say(f"ended by {signal.Signals(signalled).name}; no rank is left")
        if failed or (not signalled and (child.returncode or hung)):
            report = failure_files.text_of(folder / failure_files.TORCHRUN_REPORT)
            if what.torchrun_report:
                print(report, file=sys.stderr)
            log = _since(said, attempt) + report
            told = _why(what, attempt, time.monotonic() - begun, child.returncode, log, logs, hung=hung)
            if "SIGKILL" in told.partition("\n")[0]:
                told = "\n".join(filter(None, [told, memory.told()]))
            kept = (logs if what.logs else keep(logs, what.name)) if any_logs else None
            say(told + (f"\nwhat the other ranks printed is in {kept}" if kept else ""))
        elif not signalled and (folder / failure_files.ASKED).exists():
            signalled = signal.SIGUSR1
            say("ended after SIGUSR1; it may have more to do")
        status = 128 + signalled if signalled else int(hung) or child.returncode
        return Ended(status, (attempt / failure_files.STACK.format(0)).exists())


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
    started = min((path.stat().st_mtime for path in folder.glob(failure_files.PROCESS.format("*"))), default=0.0)
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


def _wait(
    child: subprocess.Popen[bytes], folder: Path, watch: HangWatch | None, memory: MemoryWatch, came: list[int]
) -> tuple[int, bool, bool]:
    """Wait for the end; a signal that comes meanwhile is passed on.

    Returns that which ended the ranks, or 0, whether they were ended because they hung, and whether one of them had
    failed when the signal came.
    """
    looked = time.monotonic()
    with handling_signals(lambda number, frame: came.append(number)):
        while child.poll() is None:
            if came and came[0] != signal.SIGUSR1:
                failed = any(failure_files.last_attempt(folder).glob(failure_files.ERROR.format("*")))
                _end(child, came)
                return came[0], False, failed
            if came:
                _tell(folder, came.pop(0))
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                memory.look()
                if watch and watch.hangs():
                    _let_tell(failure_files.last_attempt(folder))
                    _end(child, came)
                    return 0, True, False
            time.sleep(POLL)
    return 0, False, False


def _tell(folder: Path, number: int) -> None:
    """Send the ranks of this node a signal, and leave word for those that do not take it yet."""
    (folder / failure_files.ASKED).touch()
    for path in failure_files.last_attempt(folder).glob(failure_files.PROCESS.format("*")):
        with suppress(ProcessLookupError, ValueError):  # it has ended, or is just writing its id
            os.kill(int(path.read_text()), number)


def _let_tell(folder: Path) -> None:
    """Give the ranks time to leave word of where they are: SIGTERM may mean something else to a program, or nothing."""
    (folder / failure_files.TELL).touch()
    ranks = [path.stem.rpartition("-")[2] for path in folder.glob(failure_files.PROCESS.format("*"))]
    stacks = [folder / failure_files.STACK.format(rank) for rank in ranks]
    until = time.monotonic() + TOLD
    while time.monotonic() < until and not all(map(failure_files.text_of, stacks)):
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
