"""Does a run hang? What the launcher sees from outside, without a word of the ranks' main threads.

A run hangs if a rank waits in a collective, and for a given time no rank has called a collective or come to the end of
one, while those that do not wait have neither computed nor read nor written, they and the processes that they started.
So a rank that writes a large checkpoint while the others wait is no hang, however long it takes; nor is one that
computes for ever, which torch's own time-out ends. A longer time-out than torch's default, which a script has given its
process group, is the script's word on how long a wait may be.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpbook.ranks import all_processes, failure_files, family, process_of

USUAL = (600.0, 1800.0)
"""Seconds: torch's own time-outs, of NCCL and of gloo."""
BUSY = 0.01
"""Of a core: a process that computes less is idle."""
BYTES = 2**20
"""A process that reads and writes less in all that time is idle."""
Used = tuple[float, int]
"""What processes have used: seconds of computation, and bytes read and written."""


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself: ``since`` when nothing has changed, as `time.time` says it; ``limit``: for how many
    seconds torch lets it wait in a collective; None where it waits in none, or has not done so for some seconds."""

    since: float
    limit: float | None


class HangWatch:
    """Looks at the ``ranks`` of this machine, which leave word in ``folder``; ``patience`` in seconds.

    ``strict``: a longer time-out of the script's own counts for nothing.
    """

    def __init__(self, folder: Path, ranks: Iterable[int], patience: float, *, strict: bool) -> None:
        self._launch, self._ranks, self._patience, self._strict = folder, list(ranks), patience, strict
        self._quiet: tuple[float, dict[int, Used | None]] = (0.0, {})

    def hangs(self) -> bool:
        """Whether none of the ranks has gone on for so long; to be asked every second or so."""
        folder = failure_files.last_attempt(self._launch)
        beats = {rank: beat for rank in self._ranks if not _is_gone(folder, rank) and (beat := _beat(folder, rank))}
        waiting = {rank: beat for rank, beat in beats.items() if beat.limit is not None}
        now = time.time()
        if not waiting or not (self._strict or all(beat.limit in USUAL for beat in waiting.values())):
            return False
        since = max(beat.since for beat in beats.values())
        self._note(now, since, {rank: _used(folder, rank) for rank in beats.keys() - waiting.keys()})
        return now - max(since, self._quiet[0]) > self._patience

    def _note(self, now: float, since: float, used: dict[int, Used | None]) -> None:
        """Note when those that do not wait were last busy."""
        begun, before = self._quiet
        same = begun >= since and before.keys() == used.keys()
        if not same or any(_is_busy(before[rank], used[rank], now - begun) for rank in used):
            self._quiet = (now, used)


def _is_gone(folder: Path, rank: int) -> bool:
    return (folder / failure_files.RESULT.format(rank)).exists() or not _exists(_process(folder, rank))


def _beat(folder: Path, rank: int) -> Beat | None:
    try:
        return Beat(**json.loads(failure_files.text_of(folder / failure_files.BEAT.format(rank))))
    except ValueError:  # it is just being written
        return None


def _process(folder: Path, rank: int) -> int:
    return process_of(folder, rank) or os.getpid()  # it may not have begun


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _used(folder: Path, rank: int) -> Used | None:
    """By a rank and all that it started; None where unknown."""
    own = family(_process(folder, rank), all_processes())
    return (sum(own.values()), sum(map(_bytes, own))) if own else None


def _bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def _is_busy(before: Used | None, after: Used | None, seconds: float) -> bool:
    if before is None or after is None:
        return True
    return after[0] - before[0] > max(0.05, BUSY * seconds) or after[1] - before[1] > BYTES
