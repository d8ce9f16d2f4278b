"""Files that the processes of a run leave in their folder, and the cause of a failed run, read from them."""

import json
import math
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dpbook.core import plural, write_atomically
from dpbook.ranks.stacks import as_dumped, innermost

TASK_FILE = "task.pickle"
"""The task of the ranks; the caller writes it."""
RESULT_FILE = "result-{}.pickle"
"""Written by a rank when it returns; empty for a script."""
ERROR_FILE = "error-{}.json"
"""Written by a rank when it raises."""
SCRIPT, STARTED = "script", "started"
"""In place of the rank: the process of a script that starts its ranks itself, and one that has not become a rank."""
STACK_FILE = "stack-{}.txt"
"""Written by a rank when it crashes or is ended; empty until then."""
TIMEOUT_FILE = "timeout-{}.txt"
"""Written by a rank of `start` when it times out: its stacks; empty until then."""
PROCESS_ID_FILE = "process-{}.txt"
"""The id of a rank's process."""
TORCHRUN_REPORT_FILE = "torchrun.txt"
"""torchrun's report of the ranks that failed."""
HANDLED_ERRORS_FOLDER = "handled"
"""The folder with the error files of ranks that were ended while they handled an error."""
CALLS_FILE = "calls-{}.json"
"""The last collectives of a rank."""
HEARTBEAT_FILE = "heartbeat-{}.json"
"""The time since which a rank has neither called nor completed a collective."""
DUMP_REQUEST_FILE = "dump-request"
"""Exists when the ranks are to write their stacks before they are ended."""
ATTEMPT_FOLDER = "attempt-{}"
"""The folder of a launch's ranks, by the number of earlier restarts."""
STORE_FILE = "store"
"""The file of the store through which the ranks meet."""
PREEMPTION_FILE = "preempted"
"""Exists when SIGUSR1 has asked the ranks to end, perhaps before they could receive it."""
PREEMPTION_VARIABLE = "DPBOOK_PREEMPTION_FILE"
"""The environment variable with the path of that file, for the program."""

JOIN_FUNCTION = "init_process_group"
NOT_JOINED = f"the other ranks did not join {JOIN_FUNCTION}"
"""The error of a rank that gives up waiting for the start."""


def write_error(
    folder: Path, rank: int | str, error: BaseException, trace: TracebackType | None, *, joined: bool = True
) -> str:
    """Write down that a rank raised ``error``, and the time; return the traceback from ``trace`` on.

    ``rank`` may also be `SCRIPT` or `STARTED`. ``joined``: whether the rank had joined the process group.
    """
    text = "".join(traceback.format_exception(type(error), error, trace))
    report = {"time": time.time(), "traceback": text, "type": type(error).__name__, "message": str(error)}
    report["joined"] = joined
    report["before"] = [[type(earlier).__name__, str(earlier)] for earlier in earlier_errors(error)]
    write_atomically(folder / ERROR_FILE.format(rank), json.dumps(report).encode())  # the rank may be ended meanwhile
    return text


def earlier_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors during whose handling ``error`` was raised, the latest first."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield before
        yield from earlier_errors(before)


def cause_of_failure(folder: Path, world: int, timeout: float, exits: Mapping[int, int], launcher_output: str) -> str:
    """Return which rank died, or the first error, or each rank's line at the timeout, or the launcher's output.

    ``exits`` holds the exit status of each rank that ended by itself.
    """
    for rank, code in exits.items():
        if code < 0 or not ended_knowingly(folder, rank):
            end = f"killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with status {code}"
            return f"rank {rank} died: {end}; the other ranks were stopped{end_of_stderr(folder, rank)}"
    errors = read_errors(folder, world)
    stacks = {}  # of ranks that timed out, crashed or were ended
    for rank in range(world):  # one that is ended while it times out finishes one of the two files
        written = (read_or_empty(folder / name.format(rank)) for name in (TIMEOUT_FILE, STACK_FILE))
        if stack := max(written, key=len):
            stacks[rank] = stack
    # The first rank that timed out ended a moment before the others, whose collectives then failed: a consequence.
    timeouts = [file.st_mtime for path in folder.glob(TIMEOUT_FILE.format("*")) if (file := path.stat()).st_size]
    causes = {rank: error for rank, error in errors.items() if error["time"] < min(timeouts, default=math.inf)}
    if causes:
        rank, first = min(causes.items(), key=lambda item: float(item[1]["time"]))
        return f"rank {rank} failed first: {first['type']}: {first['message']}\n\n{first['traceback'].rstrip()}"
    if stacks:
        failed = {rank: as_dumped(error["traceback"]) for rank, error in errors.items()}
        lines = "\n".join(f"  rank {rank}: {innermost(stack)}" for rank, stack in sorted((stacks | failed).items()))
        return f"no result after {timeout:g} s; the ranks were at\n{lines}"
    finished = [rank for rank in range(world) if (folder / RESULT_FILE.format(rank)).exists()]
    tail = "\n".join(launcher_output.strip().splitlines()[-15:])
    return (
        f"a process exited without an error report (finished: {finished} of {plural(world, 'rank')}); "
        f"the launcher printed\n{tail}"
    )


def read_errors(folder: Path, world: int) -> dict[int, dict[str, Any]]:
    """Return the error reports of the ranks that raised."""
    return {rank: error for rank in range(world) if (error := read_error(folder, rank))}


def read_error(folder: Path, rank: int | str) -> dict[str, Any] | None:
    """Return the error report that `write_error` wrote of a rank, `SCRIPT` or `STARTED`; None if there is none."""
    text = read_or_empty(folder / ERROR_FILE.format(rank))
    return dict(json.loads(text)) if text else None


def last_attempt(folder: Path) -> Path:
    """Return the folder of a launch's last attempt; ``folder`` itself if there is none."""
    attempts = folder.glob(ATTEMPT_FOLDER.format("*"))
    return max(attempts, key=lambda path: int(path.name.rpartition("-")[2]), default=folder)


def ended_knowingly(folder: Path, rank: int) -> bool:
    """Return True if a rank has finished or has left a report of its end."""
    reports = [folder / name.format(rank) for name in (ERROR_FILE, TIMEOUT_FILE)]
    has_report = any(path.exists() and path.stat().st_size for path in reports)
    return has_report or (folder / RESULT_FILE.format(rank)).exists()


def read_or_empty(path: Path) -> str:
    """Return the text of a file; "" if there is none."""
    return path.read_text(errors="replace") if path.exists() else ""


def last_stderr(folder: Path, rank: int) -> str:
    """Return the stderr of a rank in the last attempt."""
    attempts = list(folder.glob(f"**/attempt_*/{rank}/stderr.log"))
    last = max(attempts, key=lambda path: int(path.parts[-3].removeprefix("attempt_")), default=None)
    return read_or_empty(last) if last else ""


def end_of_stderr(folder: Path, rank: int) -> str:
    """Return the last lines of a rank's stderr, with a heading; "" if it wrote nothing."""
    lines = last_stderr(folder, rank).strip().splitlines()[-15:]
    return "\n".join(["; the end of its stderr:", *lines]) if lines else ""
