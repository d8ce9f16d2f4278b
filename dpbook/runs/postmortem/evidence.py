"""What the ranks of a launch left behind, read from their folder and from what torchrun said, and put into words."""

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.ranks import failure_files, stacks
from dpbook.runs.postmortem.call_comparison import name
from dpbook.runs.postmortem.collective_calls import Call, Key, Records, read

_WAITED = re.compile(
    r"Timed out waiting \d+ms|Operation timed out!|(?:wait|barrier) timeout after \d+ms|Timeout waiting for key"
    r"|has timed out after \d+ms|failed to pass monitoredBarrier|Timed out after \d+ seconds waiting for clients"
    rf"|collective operation timeout|rank \d+ has not come|{failure_files.NOT_MET}"
)
"""What the error of a rank says that waited too long for others: gloo's, the stores', NCCL's and our own words."""
_LOST = re.compile(r"gloo/|SocketImpl|Connection was likely closed|ncclRemoteError|communicator was aborted")
"""What the error of a rank says that lost another: gloo's, the store's and NCCL's words."""


@dataclass(frozen=True)
class Left:
    """What the ranks of a launch left behind, those of this node.

    ``exits``: exit status of each that ended by itself; ``errors``: of each that raised; ``handled``: of each that was
    ended while it handled one; ``stacks``: where the others were when they crashed or were ended; ``records``: the
    collectives of each; ``finished``: whose script had come to its end; ``stopped``: who had to be killed; ``said``:
    rank 0's and torchrun's stderr; ``logs``: the folder with the other ranks' output; ``hung``: whether the launcher
    ended the ranks because none of them went on.
    """

    folder: Path
    world: int
    exits: Mapping[int, int]
    errors: Mapping[int, Mapping[str, Any]]
    handled: Mapping[int, Mapping[str, Any]]
    stacks: Mapping[int, str]
    records: Records
    finished: tuple[int, ...]
    stopped: tuple[int, ...]
    said: str
    logs: Path
    hung: bool = False

    def place(self, rank: int) -> str:
        """Where a rank was, in words, or "" where that is not known."""
        if rank in self.finished:
            return "had finished"
        stack = self.stack(rank)
        waited = stacks.call(stack)
        return f"was in {waited}" if waited else f"was at {stacks.innermost(stack)}" if stack else ""

    def places(self, ranks: Iterable[int] | None = None) -> str:
        """ "rank 0 was in barrier, line 3 of main; rank 1 had finished": those of which it is known, one place once."""
        known = sorted({*self.errors, *self.stacks, *self.finished}) if ranks is None else ranks
        at: dict[str, list[int]] = {}
        for rank in known:
            at.setdefault(self.place(rank), []).append(rank)
        several = {place: place.replace("was ", "were ", 1) for place, ranks in at.items() if len(ranks) > 1}
        return "; ".join(f"{name(ranks)} {several.get(place, place)}" for place, ranks in at.items() if place)

    def stack(self, rank: int) -> str:
        """The frames of a rank, the innermost first, or ""."""
        error = self.errors.get(rank) or self._lost().get(rank)
        return stacks.as_dumped(error["traceback"]) if error else self.stacks.get(rank, "")

    def _lost(self) -> dict[int, Mapping[str, Any]]:
        """Of each rank that was ended while it handled, or wrote down, that it lost others or waited too long."""
        return {rank: error for rank, error in self.handled.items() if is_consequence(error)}

    def waits(self) -> dict[int, str]:
        """Of each rank that waited for others, in which call."""
        ranks = sorted({*self.errors, *self.stacks} - {*self.finished})
        calls = {rank: stacks.call(self.stack(rank)) for rank in ranks}
        return {rank: where for rank, where in calls.items() if where}

    def waiting(self) -> set[int]:
        """The ranks that waited for others, also those that waited for a call that they had made before."""
        lost = {rank for rank, error in self.errors.items() if is_consequence(error)} | {*self._lost()}
        pending = {rank for rank in self.stacks if self.records.pending(rank)}
        return ({*self.waits()} | lost | pending) - {*self.finished}

    def waited_too_long(self) -> bool:
        """Whether a rank's patience ended, or the launcher's; what the others then lost is a consequence."""
        return self.hung or any(_WAITED.search(error["message"]) for error in self.errors.values())

    def absent(self) -> list[int]:
        """The ranks that were ended elsewhere than in a call in which one waits for others."""
        return sorted({*self.stacks} - {*self.errors, *self.finished} - self.waiting())

    def passed(self) -> list[int]:
        """The ranks that wait too, in a call that comes after that of another group in which others wait for them."""
        waits = self.waits().items()
        return [rank for rank, where in waits if self.records.passed(rank, self.awaited(rank), where)]

    def awaited(self, rank: int) -> tuple[Key, Call] | None:
        """The call to which a rank had not come, of those in which others waited."""
        return self.records.awaited(rank, self.waiting() - {rank})


def left_behind(folder: Path, world: int, status: int, said: str, logs: Path, *, hung: bool = False) -> Left:
    """What the ranks left in ``folder``; torchrun ended with ``status``, and ``said`` is its stderr and rank 0's."""
    ranks = range(world)
    report = re.findall(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)", said)
    codes = {int(rank): int(code) for rank, code, _ in report}  # torchrun does not report a status of 0
    reported = {int(rank): process for rank, _, process in report}
    asked = set(re.findall(r"Sending process (\d+) closing signal", said))
    begun = [rank for rank in ranks if rank in codes or (folder / failure_files.STACK.format(rank)).exists()]
    # A rank that is ended while it starts has not yet written its process id.
    written = {rank: failure_files.text_of(folder / failure_files.PROCESS.format(rank)) for rank in begun}
    processes = {rank: reported.get(rank) or written[rank] for rank in begun}
    ended = {rank for rank, process in processes.items() if process in asked}  # by torchrun
    raised = failure_files.errors_of(folder, world)
    # A program may answer to SIGTERM by leaving with a status, or by coming to its end.
    errors = {rank: error for rank, error in raised.items() if error["type"] != "SystemExit" or rank not in ended}
    first = min((float(error["time"]) for error in errors.values()), default=0.0)
    results = {rank: folder / failure_files.RESULT.format(rank) for rank in begun}
    finished = [r for r, path in results.items() if path.exists() and (r not in ended or path.stat().st_mtime < first)]
    dumped = {rank: failure_files.text_of(folder / failure_files.STACK.format(rank)) for rank in ranks}
    dumped = {rank: stack for rank, stack in dumped.items() if stack}
    silent = [rank for rank in begun if rank not in {*errors, *dumped, *finished}]
    forced = set(re.findall(r"Unable to shutdown process (\d+) via", said))
    killed = {rank for rank in ended if codes.get(rank) == -signal.SIGKILL or processes[rank] in forced or hung}
    stopped = [rank for rank in silent if rank in killed]
    by_themselves = {rank: codes.get(rank, 0) for rank in begun if rank not in ended} if status >= 0 else {}
    records, handled = read(folder, world), failure_files.errors_of(folder / failure_files.HANDLED, world)
    return Left(
        folder,
        world,
        by_themselves,
        errors,
        handled,
        dumped,
        records,
        tuple(finished),
        tuple(stopped),
        said,
        logs,
        hung,
    )


def speaks_of_others(message: str) -> bool:
    """Whether an error's message tells that others were lost or did not come."""
    return bool(_WAITED.search(message) or _LOST.search(message))


def is_consequence(error: Mapping[str, Any]) -> bool:
    """Whether all began with another rank: what was raised in the handling of that is a consequence too."""
    return speaks_of_others(error["before"][-1][1] if error["before"] else error["message"])
