"""Start a script as `dpbook launch` does, watched, and judge what was seen. Loads no torch."""

import json
import shlex
import statistics
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbook.core import InvalidArgument, check_float, check_int, plural
from dpbook.runs.audit.checks import CHECKS, watch_lines
from dpbook.runs.audit.findings import Line, in_order, in_words, with_causes
from dpbook.runs.audit.journals import Seen, seen
from dpbook.runs.audit.replay import AFTER, NAME, replay_lines
from dpbook.runs.audit.resume import resume_lines
from dpbook.runs.launch import Launch, launch
from dpbook.runs.watching.journal import AUDIT_VARIABLE, read

PATIENCE = 30.0
"""Seconds after which somebody who waits is told for what."""
FORMAT = 1
_CAUSES = {check.name: check.after for check in CHECKS} | {NAME: AFTER}
"""From which failures each may follow."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Audit:
    """What is to be audited: a script and its arguments (or "-m" and a module's) on ``nproc`` ranks of this machine.

    The script is ended after ``updates`` of its optimizer (0: never), of which each ``every``-th is watched;
    ``replay`` is the update whose gradient is compared with the big batch's (0: none). With ``resume``, the script's
    own options to go on from a checkpoint, it is also ended and started again; ``save`` are its options to write one,
    and ``{folder}`` in either is a folder for it. A collective that waits for ``timeout`` seconds ends the run, unless
    the script has a time of its own. Raises `InvalidArgument`.
    """

    program: tuple[str, ...]
    nproc: int
    updates: int = 5
    every: int = 1
    replay: int = 1
    save: str = ""
    resume: str | None = None
    start_timeout: float = 300.0
    timeout: float = 300.0

    def __post_init__(self) -> None:
        check_int("nproc", self.nproc, 2)  # one rank has nobody to differ from
        check_int("updates", self.updates, 0)
        check_int("every", self.every, 1)
        check_int("replay", self.replay, 0)
        check_float("timeout", self.timeout, above=0)
        if self.resume is not None and self.updates == 0:
            raise InvalidArgument("updates", self.updates, "at least 1 to try a restart after so many")
        self.launch()

    def launch(self, **told: Any) -> Launch:
        """The launch of the script as it is, or with options more."""
        return Launch(self.program, self.nproc, start_timeout=self.start_timeout, **told)


@dataclass(frozen=True)
class Verdict:
    """``lines``, failures first; ``cost``: the share of an update that watching takes, None where too few were seen;
    ``updates``: how many were seen; ``stopped``: by a signal of that number, or 0.
    """

    lines: tuple[Line, ...]
    updates: int
    cost: float | None
    stopped: int = 0

    @property
    def status(self) -> int:
        """Of the command: 0 if nothing failed, 1 if something did, 2 if nothing was seen, 128 + n for a signal."""
        if self.stopped:
            return 128 + self.stopped
        if any(line.failed for line in self.lines):
            return 1
        return 0 if self.updates else 2

    def __str__(self) -> str:
        return in_words(self.lines, self.updates, self.cost)

    def as_json(self) -> str:
        """All of it, for programs."""
        lines = [line.as_json() for line in self.lines]
        told = {"format": FORMAT, "status": self.status, "updates": self.updates, "cost": self.cost, "lines": lines}
        return json.dumps(told, indent=1)


def audit(what: Audit, say: Say = lambda text: None) -> Verdict:
    """Carry it out. ``say`` is told what is waited for. What the ranks leave is deleted."""
    with tempfile.TemporaryDirectory(prefix="dpbook-audit-") as name:
        folder = Path(name)
        if what.resume is None:
            run, stopped = _run(what, folder / "run", say)
            lines = judged(run, what.replay)
        else:
            run, stopped, lines = _resumed(what, what.resume, folder, say)
        return Verdict(tuple(lines), _updates(run), _cost(run), stopped)


def judged(run: Seen, replay: int) -> list[Line]:
    """The lines of a run that was watched; ``replay`` is the update to compare with the big batch's (0: none)."""
    return with_causes([*watch_lines(run), *(replay_lines(run, replay) if replay else [])], _CAUSES)


def _resumed(what: Audit, resume: str, folder: Path, say: Say) -> tuple[Seen, int, list[Line]]:
    """Three runs: whole, ended in the middle, going on."""
    half = what.updates
    whole_of, halves_of = folder / "whole", folder / "halves"
    say(f"first run: {plural(2 * half, 'update')} without a break")
    unbroken = _with(what, what.save, whole_of)
    whole, stopped = _run(unbroken, folder / "run", say, updates=2 * half, keep=2 * half, state=True)
    lines = judged(whole, what.replay)
    if stopped or whole.ended:
        return whole, stopped, lines
    say(f"second run: ended after {plural(half, 'update')}, when it has saved")
    first, stopped = _run(_with(what, what.save, halves_of), folder / "first", say, updates=half, saving=True, replay=0)
    if not stopped and not first.ended:
        say("third run: going on from there")
        second_of = _with(what, f"{what.save} {resume}", halves_of)
        second, stopped = _run(second_of, folder / "second", say, updates=half, keep=half, replay=0, state=True)
        lines += resume_lines(whole, second) if not second.ended else judged(second, 0)
    return whole, stopped, in_order(lines)


def _with(what: Audit, options: str, folder: Path) -> Audit:
    folder.mkdir(exist_ok=True)
    return replace(what, program=(*what.program, *shlex.split(options.replace("{folder}", str(folder)))))


def _run(what: Audit, folder: Path, say: Say, **wanted: Any) -> tuple[Seen, int]:
    """One run, and the signal that ended it (0: none)."""
    folder.mkdir()
    asked = {"folder": str(folder), "updates": what.updates, "every": what.every, "replay": what.replay}
    told = {AUDIT_VARIABLE: json.dumps({**asked, "timeout": what.timeout, **wanted})}
    why: list[str] = []
    done = threading.Event()
    waiting = threading.Thread(target=_tell_progress, args=(folder, what.nproc, done, say), daemon=True)
    waiting.start()
    try:
        watcher = "dpbook.runs.watching.installation"
        ended = launch(what.launch(watcher=watcher, variables=told, logs=folder / "logs"), why.append)
    finally:
        done.set()
    stopped = ended.status - 128 if ended.status > 128 else 0
    return seen(folder, what.nproc, "" if stopped else "\n".join(why)), stopped


def _tell_progress(folder: Path, world: int, done: threading.Event, say: Say) -> None:
    """Until the first update, say now and then what the ranks have done so far."""
    while not done.wait(PATIENCE):
        kinds = [[event["kind"] for event in read(folder, rank)] for rank in range(world)]
        if all("step" in of_rank for of_rank in kinds):
            return
        had = "; ".join(
            f"rank {rank}: {', '.join(plural(of_rank.count(kind), kind) for kind in ('forward', 'backward'))}"
            for rank, of_rank in enumerate(kinds)
        )
        say(f"waiting for the first update ({had}); Ctrl-C ends it with a verdict on what was seen")


def _updates(run: Seen) -> int:
    return max((update.number for update in run.updates), default=0)


def _cost(run: Seen) -> float | None:
    """The median over the updates after the first, of the rank on which it is largest."""
    shares = [
        [event["watching"] / max(event["seconds"] - event["watching"], 1e-9) for event in events if event["update"] > 1]
        for events in run.of("cost")
    ]
    return max((statistics.median(of_rank) for of_rank in shares if of_rank), default=None)
