"""What the processes of one run leave in their folder, and why a run failed, read from that."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from dpbook.text import plural

INSTALLED = "-packages" + os.sep  # site-packages, or Debian's dist-packages
_LIBRARY = str(Path(__file__).parents[1]) + os.sep

TASK, RESULT, ERROR, STACK = "task.pickle", "result-{}.pickle", "error-{}.json", "stack-{}.txt"
"""Written by the caller; and, one per rank, when it returns, when it raises, and when its time is up."""


def why_it_failed(folder: Path, world: int, timeout: float, status: int, launcher_said: str) -> str:
    """Who died, or the first error in time, or where each rank was when time ran out, or what the launcher said."""
    deaths = _silent_deaths(folder, world, launcher_said) if status >= 0 else {}  # unless the launcher itself was ended
    for rank, code in deaths.items():
        return f"rank {rank} died: {_cause_of_death(code)}; the others were ended{_last_words(folder, rank)}"
    errors = {r: json.loads(p.read_text()) for r in range(world) if (p := folder / ERROR.format(r)).exists()}
    if errors:
        rank, first = min(errors.items(), key=lambda item: float(item[1]["time"]))
        return f"rank {rank} failed first: {first['type']}: {first['message']}\n\n{first['traceback'].rstrip()}"
    stacks = {r: stack for r in range(world) if (stack := _text(folder / STACK.format(r)))}
    if stacks:
        where = "\n".join(f"  rank {rank}: {_innermost(stack)}" for rank, stack in stacks.items())
        return f"no result after {timeout:g} s; the ranks were at\n{where}"
    finished = [r for r in range(world) if (folder / RESULT.format(r)).exists()]
    tail = "\n".join(launcher_said.strip().splitlines()[-15:])
    return (
        f"a process ended without a word (finished: {finished} of {plural(world, 'rank')}); the launcher said\n{tail}"
    )


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


def _innermost(stack: str) -> str:
    """The innermost frame of a faulthandler dump that is neither an installed package's nor the library's own."""
    main_thread = re.split(r"hread 0x", stack)[-1]  # threads are listed from the youngest to the oldest
    frames = re.findall(r'File "(.*)", line (\d+) in (.*)', main_thread)
    for file, line, function in frames:
        if INSTALLED not in file and not file.startswith(_LIBRARY):
            return f"line {line} of {function}"
    return f"line {frames[0][1]} of {frames[0][2]}" if frames else "an unknown place"
