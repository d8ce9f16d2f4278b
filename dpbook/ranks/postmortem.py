"""What the processes of one run leave in their folder, and why a run failed, read from that."""

import json
import math
import os
import re
import signal
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dpbook.core import PACKAGE, plural, write_atomically

INSTALLED = "-packages" + os.sep  # site-packages, or Debian's dist-packages

TASK, RESULT, ERROR, STACK = "task.pickle", "result-{}.pickle", "error-{}.json", "stack-{}.txt"
"""Written by the caller; and, one per rank, when it returns, when it raises, and when its time is up."""
MEETING, STARTER_LOG = "meeting", "starter.txt"
"""Where the ranks find each other, and what the process that started them had to say."""
STDOUT, STDERR = "attempt_0/{}/stdout.log", "attempt_0/{}/stderr.log"
"""What a rank printed, where torchrun would put it."""

_WAITING = (
    os.path.join("torch", "distributed", "distributed_c10d"),
    os.path.join("torch", "autograd", "graph"),  # backward, in which a wrapper averages
    str(PACKAGE / "ranks" / "execution"),
    str(PACKAGE / "ranks" / "call_check"),
)
"""Where the stack of a rank that waits for others passes."""
NOT_MET = "the other ranks did not come to init_process_group"
"""What a rank says that gives up waiting for the start."""
_TIMED_OUT = re.compile(
    r"Timed out waiting \d+ms|wait timeout after \d+ms|has timed out after \d+ms|failed to pass monitoredBarrier"
    rf"|collective operation timeout|rank \d+ has not come|{NOT_MET}"
)
"""What the error of a rank says that waited too long for others: gloo's, the store's, NCCL's and our own words."""
_TIME_UP = "Timeout ("
"""How faulthandler begins what it writes when the time is up, and not when a rank is ended because another failed."""


def write_error(folder: Path, rank: int, error: BaseException, trace: TracebackType | None) -> str:
    """Write down that a rank raised ``error``, with its time and the traceback from ``trace``, which is returned."""
    told = "".join(traceback.format_exception(type(error), error, trace))
    report = {"time": time.time(), "type": type(error).__name__, "message": str(error), "traceback": told}
    write_atomically(folder / ERROR.format(rank), json.dumps(report).encode())  # it may be ended meanwhile
    return told


def why_it_failed(folder: Path, world: int, timeout: float, status: int, launcher_said: str) -> str:
    """`cause_of_failure` of ranks under torchrun, whose exit status is told by what it said."""
    ended = _exits_told(folder, world, launcher_said) if status >= 0 else {}  # unless torchrun itself was ended
    return cause_of_failure(folder, world, timeout, ended, launcher_said)


def cause_of_failure(folder: Path, world: int, timeout: float, exits: Mapping[int, int], launcher_said: str) -> str:
    """Who died, or the first error in time, or where each rank was when time ran out, or what the launcher said.

    ``exits`` holds the exit status of each rank that ended by itself.
    """
    for rank, code in exits.items():
        if code < 0 or not _spoke(folder, rank):
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit status {code}"
            return f"rank {rank} died: {how}; the others were ended{_last_words(folder, rank)}"
    errors = _errors(folder, world)
    stacks = {r: stack for r in range(world) if (stack := _text(folder / STACK.format(r)))}
    causes = {r: error for r, error in errors.items() if error["time"] < _time_was_up(folder, stacks)}
    if causes:
        rank, first = min(causes.items(), key=lambda item: float(item[1]["time"]))
        return f"rank {rank} failed first: {first['type']}: {first['message']}\n\n{first['traceback'].rstrip()}"
    if stacks:
        fallen = {r: _as_dumped(error["traceback"]) for r, error in errors.items()}
        where = "\n".join(f"  rank {r}: {_innermost(stack)}" for r, stack in sorted((stacks | fallen).items()))
        return f"no result after {timeout:g} s; the ranks were at\n{where}"
    finished = [r for r in range(world) if (folder / RESULT.format(r)).exists()]
    tail = "\n".join(launcher_said.strip().splitlines()[-15:])
    return (
        f"a process ended without a word (finished: {finished} of {plural(world, 'rank')}); the launcher said\n{tail}"
    )


def who_never_came(folder: Path, world: int) -> str:
    """Which ranks were elsewhere when others waited in a collective, or who waited in which; "" where neither is known.

    A time-out is raised by a rank that waited, so that a launcher blames the wrong one. Where the first failure
    is no time-out, ranks that were ended elsewhere are well, and not named.
    """
    reports = _errors(folder, world)
    first = min(reports.values(), key=lambda error: float(error["time"]), default=None)
    finished = [f"rank {r} had finished" for r in range(world) if (folder / RESULT.format(r)).exists()]
    if first is None or not _TIMED_OUT.search(first["message"]):
        return "\n".join(finished)
    errors = {rank: error["traceback"] for rank, error in reports.items()}
    ended = {r: stack for r in range(world) if (stack := _text(folder / STACK.format(r))) and r not in errors}
    absent = {r: stack for r, stack in ended.items() if _call(stack) is None}
    missed = [f"rank {r} never came: it was at {_innermost(stack)}" for r, stack in absent.items()] + finished
    if missed:
        return "\n".join(missed)
    calls = {r: _call(stack) for r, stack in sorted(({r: _as_dumped(t) for r, t in errors.items()} | ended).items())}
    if None in calls.values() or len(set(calls.values())) < 2:
        return ""
    return "\n".join(["the ranks waited in different calls:", *(f"  rank {r}: {call}" for r, call in calls.items())])


def _errors(folder: Path, world: int) -> dict[int, dict[str, Any]]:
    """What the ranks that raised have written down."""
    paths = {rank: folder / ERROR.format(rank) for rank in range(world)}
    return {rank: json.loads(path.read_text(encoding="utf-8")) for rank, path in paths.items() if path.exists()}


def _time_was_up(folder: Path, stacks: dict[int, str]) -> float:
    """When the first rank noticed that its time was up, as `time.time` says it, or infinity.

    It ends a moment before the others, whose collectives then fail: such an error is a consequence.
    """
    late = [folder / STACK.format(rank) for rank, stack in stacks.items() if stack.startswith(_TIME_UP)]
    return min((path.stat().st_mtime for path in late), default=math.inf)


def _as_dumped(traceback: str) -> str:
    """The frames of a traceback in faulthandler's order: the innermost first."""
    return "\n".join(reversed(traceback.replace(", in ", " in ").splitlines()))


def _exits_told(folder: Path, world: int, launcher_said: str) -> dict[int, int]:
    """The exit status of the ranks that torchrun did not end itself. It does not report a status of 0."""
    report = re.findall(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)", launcher_said)
    ended = set(re.findall(r"Sending process (\d+) closing signal", launcher_said))
    told = {int(rank): (int(code), pid in ended) for rank, code, pid in report}
    begun = [rank for rank in range(world) if rank in told or (folder / STACK.format(rank)).exists()]
    exits = {rank: told.get(rank, (0, False)) for rank in begun}
    return {rank: code for rank, (code, by_torchrun) in exits.items() if not by_torchrun}


def _spoke(folder: Path, rank: int) -> bool:
    """Whether a rank has finished, or has left word of how it ended."""
    left = [folder / name.format(rank) for name in (ERROR, STACK)]
    return (folder / RESULT.format(rank)).exists() or any(path.exists() and path.stat().st_size for path in left)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _last_words(folder: Path, rank: int) -> str:
    """The end of what a rank wrote to stderr, on lines of its own."""
    attempts = sorted(folder.glob(f"**/attempt_*/{rank}/stderr.log"))  # that of the last
    said = (_text(attempts[-1]) if attempts else "").strip().splitlines()[-15:]
    return "\n".join(["; its last words were", *said]) if said else ""


def _main_thread(stack: str) -> str:
    """Its part of a faulthandler dump, which lists the threads from the youngest to the oldest."""
    return re.split(r"hread 0x", stack)[-1]


def _call(stack: str) -> str | None:
    """The call in which a rank waited for others, and from where it was called; None where it was in none."""
    frames = re.findall(r'File "(.*)", line (\d+) in (.*)', _main_thread(stack))
    inside = [function for file, _, function in frames if any(place in file for place in _WAITING)]
    return f"{inside[-1]}, {_innermost(stack)}" if inside else None


def _innermost(stack: str) -> str:
    """The innermost frame of a faulthandler dump that is neither an installed package's nor the library's own."""
    frames = re.findall(r'File "(.*)", line (\d+) in (.*)', _main_thread(stack))
    for file, line, function in frames:
        if INSTALLED not in file and not file.startswith(str(PACKAGE) + os.sep):
            return f"line {line} of {function}"
    return f"line {frames[0][1]} of {frames[0][2]}" if frames else "an unknown place"
