"""Launcher of a run: starts it, passes on output and signals, watches it, and reports why it failed. Loads no torch."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dpbook.core import handling_signals, temporary_folder
from dpbook.ranks import failure_files
from dpbook.runs.launch.command import Launch
from dpbook.runs.launch.spawned_ranks import exit_code_report
from dpbook.runs.launch.watches import HangWatch, MemoryWatch
from dpbook.runs.postmortem.rules import why_it_failed

SHUTDOWN_TIMEOUT = 35.0
"""Seconds in which ranks may end by themselves after a signal, before they are killed; torchrun gives them 30."""
DUMP_TIMEOUT = 5.0
"""Seconds in which ranks write their stacks, before they are ended because they hang."""
POLL_SECONDS = 0.05
"""Interval at which the launcher looks whether torchrun has ended."""
WATCH_SECONDS = 1.0
"""Interval at which the watches look at the ranks."""
STDERR_BYTES = 200_000
"""Size of the end of torchrun's stderr that is kept: it names the ranks that failed."""
LOG_FOLDER = Path("runs", "logs")
"""Parent of the logs of a failed launch by default."""
STAMP = "%Y%m%d-%H%M%S"
StderrChunks = list[tuple[float, bytes]]
"""Parts of torchrun's stderr, each with the time of day."""


class LaunchResult(NamedTuple):
    """Result of a launch: its exit ``status``, 0 for success, whether rank 0 ran on this node, what was reported."""

    status: int
    had_rank_0: bool
    messages: tuple[str, ...] = ()


def launch(
    spec: Launch, report: Callable[[str], None] = lambda text: None, early_signals: list[int] | None = None
) -> LaunchResult:
    """Carry out a launch and return its result. If it failed, ``report`` is called with the reason at the end.

    Ctrl-C, SIGTERM and SIGHUP end the ranks by SIGTERM, and nothing is left running. If a rank had failed before that,
    while the others still worked, its failure is reported too. SIGUSR1 is passed on to the ranks; a program without a
    handler ignores it. If a program ends successfully after it, work may be left: its status is 128 + SIGUSR1.
    ``early_signals`` holds signals that arrived before the call and that nothing has acted on yet.

    The output of rank 0 goes to this process's own. That of the other ranks is kept in ``spec.logs``, or if the launch
    fails below `LOG_FOLDER`.
    """
    messages: list[str] = []

    def tell(message: str) -> None:
        messages.append(message)
        report(message)

    with temporary_folder("launch") as folder:
        logs = new_folder(spec.logs, time.strftime(STAMP)) if spec.logs else folder / "logs"
        chunks: StderrChunks = []
        begun = time.monotonic()
        child = subprocess.Popen(
            spec.command(folder, logs), env=spec.environment(folder), stderr=subprocess.PIPE, start_new_session=True
        )
        reader = threading.Thread(target=_pass_on_stderr, args=(child, chunks), daemon=True)
        reader.start()
        memory, hangs = MemoryWatch(folder, spec.ranks), spec.hang_watch(folder)
        signals = [] if early_signals is None else early_signals
        signalled, hung, failed = _wait(child, folder, hangs, memory, signals)
        if signalled or hung or child.returncode or spec.spawns:
            with suppress(ProcessLookupError):  # torchrun has ended its ranks; a script that starts them may not have
                os.killpg(child.pid, signal.SIGKILL)
        reader.join(SHUTDOWN_TIMEOUT)
        attempt = failure_files.last_attempt(folder)
        has_logs = tidy_logs(logs)
        if signalled:
            tell(f"stopped by {signal.Signals(signalled).name}; no rank is left running")
        if failed or (not signalled and (child.returncode or hung)):
            torchrun_report = failure_files.read_or_empty(folder / failure_files.TORCHRUN_REPORT_FILE)
            if spec.spawns:  # the program itself may be a rank, and has no time to report a signal that ends it
                torchrun_report += exit_code_report(attempt, len(spec.ranks), {str(child.pid): child.returncode})
            if spec.torchrun_report:
                print(torchrun_report, file=sys.stderr)
            stderr = _stderr_since_start(chunks, attempt) + torchrun_report
            timeout = hangs.timeout if hung and hangs else None
            status, seconds = child.returncode, time.monotonic() - begun
            reason = _reason(spec, attempt, seconds, status, stderr, logs, hang_timeout=timeout)
            if "SIGKILL" in reason.partition("\n")[0]:
                reason = "\n".join(filter(None, [reason, memory.summary()]))
            kept = (logs if spec.logs else keep_logs(logs, spec.name)) if has_logs else None
            tell(reason + (f"\nthe output of the ranks other than 0 is in {kept}" if kept else ""))
        elif not signalled and (folder / failure_files.PREEMPTION_FILE).exists():
            signalled = signal.SIGUSR1
            tell("ended after SIGUSR1; work may be left")
        ended = child.returncode if child.returncode >= 0 else 128 - child.returncode  # without torchrun by a signal
        status = 128 + signalled if signalled else int(hung) or ended
        return LaunchResult(status, (attempt / failure_files.STACK_FILE.format(0)).exists(), tuple(messages))


def _reason(
    spec: Launch, folder: Path, seconds: float, status: int, stderr: str, logs: Path, *, hang_timeout: float | None
) -> str:
    if spec.nnodes > 1 and (error := re.search("Rendezvous(Timeout|Connection)Error", stderr)):
        if error[1] == "Connection":
            return f"no rendezvous answered at {spec.endpoint} within {spec.start_timeout:g} s"
        return f"not all of the {spec.nnodes} nodes joined at {spec.endpoint} within {spec.start_timeout:g} s"
    hung = hang_timeout is not None
    lines = [why_it_failed(folder, len(spec.ranks), seconds, status, stderr, logs, hung=hung)]
    if hung:
        lines.append(f"no rank made progress for {hang_timeout:g} s, so the launch was stopped (--hang-timeout)")
    if not spec.check_calls and re.search("gloo received|waited in different collectives", lines[0]):
        lines.append("--check-calls shows which rank makes which call")
    if spec.nnodes > 1:
        lines.append("This is what this node saw; the first rank to fail may be on another node.")
    return "\n".join(filter(None, lines))


def _stderr_since_start(chunks: StderrChunks, folder: Path) -> str:
    """Return what torchrun wrote after the ranks that leave their files in ``folder`` were started."""
    processes = folder.glob(failure_files.PROCESS_ID_FILE.format("*"))
    started = min((path.stat().st_mtime for path in processes), default=0.0)
    return b"".join(chunk for when, chunk in chunks if when >= started).decode(errors="replace")


def _pass_on_stderr(child: subprocess.Popen[bytes], chunks: StderrChunks) -> None:
    """Print the stderr of torchrun and rank 0 as it arrives, and keep its last `STDERR_BYTES` in ``chunks``."""
    assert child.stderr is not None
    size = 0
    while chunk := os.read(child.stderr.fileno(), 65536):
        os.write(2, chunk)
        chunks.append((time.time(), chunk))
        size += len(chunk)
        while size - len(chunks[0][1]) > STDERR_BYTES:
            size -= len(chunks.pop(0)[1])


def _wait(
    child: subprocess.Popen[bytes], folder: Path, watch: HangWatch | None, memory: MemoryWatch, signals: list[int]
) -> tuple[int, bool, bool]:
    """Wait until torchrun ends, and pass on signals.

    Returns the signal that ended the ranks, or 0; whether they were ended because they hung; and whether a rank had
    failed when the signal arrived. The handler only notes a signal, because Python drops what a handler raises while an
    import ends: a launch that was told to end then trained on, in 2 of about 280 starts.
    """
    last_watched = time.monotonic()
    with handling_signals(lambda number, frame: signals.append(number)):
        while child.poll() is None:
            if signals and signals[0] != signal.SIGUSR1:
                failed = any(failure_files.last_attempt(folder).glob(failure_files.ERROR_FILE.format("*")))
                _end(child, signals)
                return signals[0], False, failed
            if signals:
                _pass_on_signal(folder, child.pid, signals.pop(0))
            if time.monotonic() - last_watched > WATCH_SECONDS:
                last_watched = time.monotonic()
                memory.sample()
                if watch and watch.hangs():
                    _request_stacks(failure_files.last_attempt(folder))
                    _end(child, signals)
                    return 0, True, False
            time.sleep(POLL_SECONDS)
    return 0, False, False


def _pass_on_signal(folder: Path, launched: int, number: int) -> None:
    """Send a signal to the ranks of this node, and leave a file for those that cannot receive it yet.

    Once there are ranks the ``launched`` process receives it too: torchrun ignores it, a script may handle it.
    """
    (folder / failure_files.PREEMPTION_FILE).touch()
    processes = set()
    for path in failure_files.last_attempt(folder).glob(failure_files.PROCESS_ID_FILE.format("*")):
        with suppress(ValueError):  # the rank is just writing its id
            processes |= {launched, int(path.read_text())}
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _request_stacks(folder: Path) -> None:
    """Have the ranks write their stacks: a program may ignore SIGTERM, or answer it in its own way."""
    (folder / failure_files.DUMP_REQUEST_FILE).touch()
    ids = folder.glob(failure_files.PROCESS_ID_FILE.format("*"))
    stacks = [folder / failure_files.STACK_FILE.format(path.stem.rpartition("-")[2]) for path in ids]
    deadline = time.monotonic() + DUMP_TIMEOUT
    while time.monotonic() < deadline and not all(map(failure_files.read_or_empty, stacks)):
        time.sleep(POLL_SECONDS)


def _end(child: subprocess.Popen[bytes], signals: list[int]) -> None:
    """Ask torchrun to end its ranks; kill its session if it takes too long, or at a second signal."""
    child.send_signal(signal.SIGTERM)
    n_signals, deadline = len(signals), time.monotonic() + SHUTDOWN_TIMEOUT
    while child.poll() is None:
        if len(signals) > n_signals or time.monotonic() > deadline:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        time.sleep(POLL_SECONDS)


def new_folder(parent: Path, name: str) -> Path:
    """Make a new folder in ``parent``; a number follows its name if there is one already. Raises `OSError`."""
    number, path = 1, parent / name
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not parent.is_dir():
                raise
        number += 1
        path = parent / f"{name}-{number}"


def tidy_logs(folder: Path) -> bool:
    """Move torchrun's logs to attempt_0/1/stderr.log and so on, remove empty ones, and return True if any is left.

    torchrun puts a folder with a random name between. A ``folder`` without logs is removed.
    """
    written = [path for path in folder.glob("*/attempt_*/*/std*.log") if path.stat().st_size]
    for path in written:
        target = folder.joinpath(*path.parts[-3:])
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    for between in folder.glob("*"):
        if not between.name.startswith("attempt_"):
            shutil.rmtree(between)
    if not written and folder.is_dir():
        folder.rmdir()
    return bool(written)


def keep_logs(folder: Path, name: str) -> Path | None:
    """Copy tidy logs to `LOG_FOLDER` and return the copy; None if it has no room."""
    try:
        kept = new_folder(LOG_FOLDER, f"{name}-{time.strftime(STAMP)}")
        return Path(shutil.copytree(folder, kept, dirs_exist_ok=True))
    except OSError:  # a full disk may be why the launch failed
        return None
