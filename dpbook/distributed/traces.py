"""What the processes of one run leave in their folder, and why a run failed, read from that."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from dpbook.text import plural

INSTALLED = "-packages" + os.sep  # site-packages, or Debian's dist-packages
_LIBRARY = str(Path(__file__).parents[1])

TASK, RESULT, ERROR, STACK = "task.pickle", "result-{}.pickle", "error-{}.json", "stack-{}.txt"
"""Written by the caller; and, one per rank, when it returns, when it raises, and when its time is up."""

_WAITING = (
    os.path.join("torch", "distributed", "distributed_c10d"),
    os.path.join("torch", "autograd", "graph"),  # backward, in which a wrapper averages
    os.path.join(_LIBRARY, "distributed", "execute"),
)
"""Where the stack of a rank that waits for others passes."""
_TIME_UP = "Timeout ("
"""How faulthandler begins what it writes when the time is up, and not when a rank is ended because another failed."""


def write_error(folder: Path, rank: int, error: BaseException, trace: TracebackType | None) -> str:
    """Write down that a rank raised ``error``, with its time and the traceback from ``trace``, which is returned."""
    told = "".join(traceback.format_exception(type(error), error, trace))
    report = {"time": time.time(), "type": type(error).__name__, "message": str(error), "traceback": told}
    (folder / ERROR.format(rank)).write_text(json.dumps(report), encoding="utf-8")
    return told


def why_it_failed(folder: Path, world: int, timeout: float, status: int, launcher_said: str) -> str:
    """Who died, or the first error in time, or where each rank was when time ran out, or what the launcher said."""
    deaths = _silent_deaths(folder, world, launcher_said) if status >= 0 else {}  # unless the launcher itself was ended
    for rank, code in deaths.items():
        return f"rank {rank} died: {_cause_of_death(code)}; the others were ended{_last_words(folder, rank)}"
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

    A time-out is raised by a rank that waited, so that a launcher blames the wrong one.
    """
    errors = {rank: error["traceback"] for rank, error in _errors(folder, world).items()}
    ended = {r: stack for r in range(world) if (stack := _text(folder / STACK.format(r))) and r not in errors}
    absent = {r: stack for r, stack in ended.items() if _call(stack) is None}
    missed = [f"rank {r} never came: it was at {_innermost(stack)}" for r, stack in absent.items()]
    missed += [f"rank {r} had finished" for r in range(world) if (folder / RESULT.format(r)).exists()]
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


def _silent_deaths(folder: Path, world: int, launcher_said: str) -> dict[int, int]:
    """The exit codes of the ranks that neither finished nor said why, and that the launcher did not end itself."""
    report = re.findall(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)", launcher_said)
    ended = set(re.findall(r"Sending process (\d+) closing signal", launcher_said))
    exits = {int(rank): (int(code), pid in ended) for rank, code, pid in report}
    deaths = {}
    for rank in range(world):
        begun = (folder / STACK.format(rank)).exists()
        code, excused = exits.get(rank, (0, not begun))  # the launcher does not report status 0
        finished = (folder / RESULT.format(rank)).exists()
        left = [folder / name.format(rank) for name in (ERROR, STACK)]
        spoke = finished or any(path.exists() and path.stat().st_size for path in left)
        if not excused and (code < 0 or not spoke):
            deaths[rank] = code
    return deaths


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _last_words(folder: Path, rank: int) -> str:
    """The end of what a rank wrote to stderr, on lines of its own."""
    attempts = sorted(folder.glob(f"**/attempt_*/{rank}/stderr.log"))  # that of the last
    said = (_text(attempts[-1]) if attempts else "").strip().splitlines()[-15:]
    return "\n".join(["; its last words were", *said]) if said else ""


def _cause_of_death(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit status {code}"


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
        if INSTALLED not in file and not file.startswith(_LIBRARY + os.sep):
            return f"line {line} of {function}"
    return f"line {frames[0][1]} of {frames[0][2]}" if frames else "an unknown place"
