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

from dpbook.text import plural

INSTALLED = "-packages" + os.sep  # site-packages, or Debian's dist-packages
_LIBRARY = str(Path(__file__).parents[1]) + os.sep

TASK, RESULT, ERROR, STACK = "task.pickle", "result-{}.pickle", "error-{}.json", "stack-{}.txt"
"""Written by the caller; and, one per rank, when it returns, when it raises, and when its time is up."""

_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d")
"""In the stack of a rank that waits for others."""
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
    errors = {r: json.loads(p.read_text()) for r in range(world) if (p := folder / ERROR.format(r)).exists()}
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
    """Which ranks were elsewhere when the others waited in a collective; a line each, "" if there are none.

    A time-out is raised by a rank that waited, so that a launcher blames the wrong one.
    """
    said = []
    for rank in range(world):
        stack = _text(folder / STACK.format(rank))
        if stack and not (folder / ERROR.format(rank)).exists() and _COLLECTIVES not in _main_thread(stack):
            said.append(f"rank {rank} never came: it was at {_innermost(stack)}")
    return "\n".join(said)


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
        left = [folder / name.format(rank) for name in (RESULT, ERROR, STACK)]
        spoke = any(path.exists() and path.stat().st_size for path in left)
        if not excused and (code < 0 or not spoke):
            deaths[rank] = code
    return deaths


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _last_words(folder: Path, rank: int) -> str:
    """The end of what a rank wrote to stderr, on lines of its own."""
    said = "".join(map(_text, folder.glob(f"*/attempt_0/{rank}/stderr.log"))).strip().splitlines()[-15:]
    return "\n".join(["; its last words were", *said]) if said else ""


def _cause_of_death(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit status {code}"


def _main_thread(stack: str) -> str:
    """Its part of a faulthandler dump, which lists the threads from the youngest to the oldest."""
    return re.split(r"hread 0x", stack)[-1]


def _innermost(stack: str) -> str:
    """The innermost frame of a faulthandler dump that is neither an installed package's nor the library's own."""
    frames = re.findall(r'File "(.*)", line (\d+) in (.*)', _main_thread(stack))
    for file, line, function in frames:
        if INSTALLED not in file and not file.startswith(_LIBRARY):
            return f"line {line} of {function}"
    return f"line {frames[0][1]} of {frames[0][2]}" if frames else "an unknown place"
