"""What the processes of one run leave in their folder, and why a run failed, read from that."""

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

TASK, RESULT, ERROR, STACK = "task.pickle", "result-{}.pickle", "error-{}.json", "stack-{}.txt"
"""Written by the caller; and, one per rank, when it returns, when it raises, and when its time is up or it crashes."""
PROCESS, TORCHRUN_REPORT = "process-{}.txt", "torchrun.txt"
"""The id of a rank's process, and what torchrun tells of the ranks that failed."""
HANDLED = "handled"
"""The folder of the errors that ranks were handling when they were ended."""
CALLS, BEAT = "calls-{}.json", "beat-{}.json"
"""The last collectives of a rank, and since when none was called or has come to its end."""
TELL = "tell"
"""A file that is there when the ranks are to leave word of where they are, before they are ended."""
ATTEMPT = "attempt-{}"
"""The folder of a launch's ranks, by the number of restarts before it."""
MEETING = "meeting"
"""Where the ranks find each other."""
ASKED, ASKED_FILE = "asked", "DPBOOK_ASKED"
"""A file that is there when the ranks have been asked by SIGUSR1 to end, maybe before they could hear it; and the
variable in which a program is told its path."""

NOT_MET = "the other ranks did not come to init_process_group"
"""What a rank says that gives up waiting for the start."""
_TIME_UP = "Timeout ("
"""How faulthandler begins what it writes when the time is up, and not when a rank is ended because another failed."""


def write_error(
    folder: Path, rank: int, error: BaseException, trace: TracebackType | None, *, joined: bool = True
) -> str:
    """Write down that a rank raised ``error``, with its time and the traceback from ``trace``, which is returned.

    ``joined``: whether the rank had joined the others.
    """
    told = "".join(traceback.format_exception(type(error), error, trace))
    report = {"time": time.time(), "traceback": told, "type": type(error).__name__, "message": str(error)}
    report["joined"] = joined
    report["before"] = [[type(one).__name__, str(one)] for one in _handled(error)]
    write_atomically(folder / ERROR.format(rank), json.dumps(report).encode())  # it may be ended meanwhile
    return told


def _handled(error: BaseException) -> Iterator[BaseException]:
    """The errors during whose handling ``error`` came: the one before it, the one before that, and so on."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield before
        yield from _handled(before)


def cause_of_failure(folder: Path, world: int, timeout: float, exits: Mapping[int, int], launcher_said: str) -> str:
    """Who died, or the first error in time, or where each rank was when time ran out, or what the launcher said.

    ``exits`` holds the exit status of each rank that ended by itself.
    """
    for rank, code in exits.items():
        if code < 0 or not left_word(folder, rank):
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit status {code}"
            return f"rank {rank} died: {how}; the others were ended{last_words(folder, rank)}"
    errors = errors_of(folder, world)
    stacks = {r: stack for r in range(world) if (stack := text_of(folder / STACK.format(r)))}
    causes = {r: error for r, error in errors.items() if error["time"] < _time_was_up(folder, stacks)}
    if causes:
        rank, first = min(causes.items(), key=lambda item: float(item[1]["time"]))
        return f"rank {rank} failed first: {first['type']}: {first['message']}\n\n{first['traceback'].rstrip()}"
    if stacks:
        fallen = {r: as_dumped(error["traceback"]) for r, error in errors.items()}
        where = "\n".join(f"  rank {r}: {innermost(stack)}" for r, stack in sorted((stacks | fallen).items()))
        return f"no result after {timeout:g} s; the ranks were at\n{where}"
    finished = [r for r in range(world) if (folder / RESULT.format(r)).exists()]
    tail = "\n".join(launcher_said.strip().splitlines()[-15:])
    return (
        f"a process ended without a word (finished: {finished} of {plural(world, 'rank')}); the launcher said\n{tail}"
    )


def errors_of(folder: Path, world: int) -> dict[int, dict[str, Any]]:
    """What the ranks that raised have written down."""
    paths = {rank: folder / ERROR.format(rank) for rank in range(world)}
    return {rank: json.loads(path.read_text(encoding="utf-8")) for rank, path in paths.items() if path.exists()}


def _time_was_up(folder: Path, stacks: dict[int, str]) -> float:
    """When the first rank noticed that its time was up, as `time.time` says it, or infinity.

    It ends a moment before the others, whose collectives then fail: such an error is a consequence.
    """
    late = [folder / STACK.format(rank) for rank, stack in stacks.items() if stack.startswith(_TIME_UP)]
    return min((path.stat().st_mtime for path in late), default=math.inf)


def last_attempt(folder: Path) -> Path:
    """Where the ranks of a launch leave word since they were started for the last time."""
    attempts = folder.glob(ATTEMPT.format("*"))
    return max(attempts, key=lambda path: int(path.name.rpartition("-")[2]), default=folder)


def left_word(folder: Path, rank: int) -> bool:
    """Whether a rank has finished, or has left word of how it ended."""
    left = [folder / name.format(rank) for name in (ERROR, STACK)]
    return (folder / RESULT.format(rank)).exists() or any(path.exists() and path.stat().st_size for path in left)


def text_of(path: Path) -> str:
    """What a file holds; "" where there is none."""
    return path.read_text(errors="replace") if path.exists() else ""


def last_stderr(folder: Path, rank: int) -> str:
    """What a rank wrote to stderr in the last attempt."""
    attempts = list(folder.glob(f"**/attempt_*/{rank}/stderr.log"))
    last = max(attempts, key=lambda path: int(path.parts[-3].removeprefix("attempt_")), default=None)
    return text_of(last) if last else ""


def last_words(folder: Path, rank: int) -> str:
    """The end of what a rank wrote to stderr, on lines of its own."""
    said = last_stderr(folder, rank).strip().splitlines()[-15:]
    return "\n".join(["; its last words were", *said]) if said else ""
