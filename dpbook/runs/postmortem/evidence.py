"""Evidence that the ranks of a launch left: errors, stacks and collectives in their folder, and torchrun's output."""

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.core import ranks_in_words
from dpbook.ranks import failure_files, stacks
from dpbook.runs.postmortem.collective_calls import CallRecords, RecordedCall, ranks_by_text, read_calls

_TIMED_OUT = re.compile(
    r"Timed out waiting \d+ms|Operation timed out!|Application timeout caused pair closure"
    r"|(?:wait|barrier) timeout after \d+ms|Timeout waiting for key"
    r"|has timed out after \d+ms|failed to pass monitoredBarrier|Timed out after \d+ seconds waiting for clients"
    rf"|collective operation timeout|rank \d+ has not joined it|{failure_files.NOT_JOINED}"
)
"""Messages of a rank that waited too long for others: those of gloo, the stores, NCCL and this package."""
_LOST_PEER = re.compile(r"gloo/|SocketImpl|Connection was likely closed|ncclRemoteError|communicator was aborted")
"""Messages of a rank that lost its connection to another: those of gloo, the store and NCCL."""
Error = Mapping[str, Any]
"""Report of an error, as `failure_files.write_error` writes it."""


@dataclass(frozen=True)
class LaunchEvidence:
    """Evidence that the ranks of this node left.

    ``exit_codes``: exit codes of the ranks that ended by themselves. ``errors``: errors of the ranks that raised.
    ``other_errors``: those of a script that starts its ranks itself, and of a process that had not become a rank.
    ``handled_errors``: errors that ranks were handling when they were ended. ``stacks``: stacks of the other ranks when
    they crashed or were ended. ``calls``: the collectives of all ranks. ``finished``: ranks whose script had ended.
    ``unresponsive``: ranks that had to be killed. ``stderr``: that of torchrun and of rank 0. ``logs``: the folder with
    the output of the other ranks. ``hung``: the launcher ended the ranks because none of them made progress.
    """

    world: int
    exit_codes: Mapping[int, int]
    errors: Mapping[int, Error]
    other_errors: Mapping[str, Error]
    handled_errors: Mapping[int, Error]
    stacks: Mapping[int, str]
    calls: CallRecords
    finished: tuple[int, ...]
    unresponsive: tuple[int, ...]
    stderr: str
    logs: Path
    hung: bool

    def describe_position(self, rank: int) -> str:
        """Return "was in barrier, train.py:3 in main" for a rank; "" if its position is unknown."""
        if rank in self.finished:
            return "had finished"
        stack = self.stack(rank)
        if stacks.has_ended(stack):
            return "was ending"
        call = stacks.waiting_call(stack)
        return f"was in {call}" if call else f"was at {stacks.innermost(stack)}" if stack else ""

    def describe_positions(self, ranks: Iterable[int] | None = None) -> str:
        """Return "rank 0 was in barrier, train.py:3 in main; rank 1 had finished", with one entry per position.

        Ranks whose position is unknown are omitted. None means all ranks.
        """
        known = sorted({*self.errors, *self.stacks, *self.finished}) if ranks is None else ranks
        entries = []
        for position, alike in ranks_by_text({rank: self.describe_position(rank) for rank in known}).items():
            verb = position if len(alike) == 1 else position.replace("was ", "were ", 1)
            entries += [f"{ranks_in_words(alike)} {verb}"] if position else []
        return "; ".join(entries)

    def stack(self, rank: int) -> str:
        """Return the frames of a rank, the innermost first, or ""."""
        error = self.errors.get(rank) or self._failed_waits().get(rank)
        return stacks.as_dumped(error["traceback"]) if error else self.stacks.get(rank, "")

    def _failed_waits(self) -> dict[int, Error]:
        """Return the errors of ranks that were ended while they handled a lost connection or a timeout."""
        return {rank: error for rank, error in self.handled_errors.items() if is_consequence(error)}

    def waiting_calls(self) -> dict[int, str]:
        """Return the call in which each rank waited for others."""
        ranks = sorted({*self.errors, *self.stacks} - {*self.finished})
        calls = {rank: stacks.waiting_call(self.stack(rank)) for rank in ranks}
        return {rank: call for rank, call in calls.items() if call}

    def waiting_ranks(self) -> set[int]:
        """Return the ranks that waited for others, for a call in progress or for an asynchronous one made earlier."""
        lost = {rank for rank, error in self.errors.items() if is_consequence(error)} | {*self._failed_waits()}
        pending = {rank for rank in self.stacks if rank in self.calls.ranks and self.calls.ranks[rank].pending}
        return ({*self.waiting_calls()} | lost | pending) - {*self.finished}

    def timed_out(self) -> bool:
        """Return True if a rank or the launcher waited too long; connections lost after that are consequences."""
        return self.hung or any(_TIMED_OUT.search(error["message"]) for error in self.errors.values())

    def absent_ranks(self) -> list[int]:
        """Return the ranks that were ended while they were not in a call in which ranks wait for each other."""
        ended = {rank for rank, stack in self.stacks.items() if stacks.has_ended(stack)}
        return sorted({*self.stacks} - {*self.errors, *self.finished, *ended} - self.waiting_ranks())

    def ranks_past_call(self) -> list[int]:
        """Return the ranks that wait in one group, after a call of another group in which others wait for them."""
        calls = self.waiting_calls().items()
        return [rank for rank, call in calls if self.calls.is_past(rank, self.missed_call(rank), call)]

    def missed_call(self, rank: int) -> RecordedCall | None:
        """Return the call in which others waited and that a rank never joined; None if there is none."""
        return self.calls.missed_call(rank, self.waiting_ranks() - {rank})


def read_evidence(
    folder: Path, world: int, status: int, stderr: str, logs: Path, *, hung: bool = False
) -> LaunchEvidence:
    """Read the evidence in ``folder``, of a torchrun that ended with ``status``; ``stderr`` is its own and rank 0's."""
    ranks = range(world)
    report = re.findall(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)", stderr)
    codes = {int(rank): int(code) for rank, code, _ in report}  # torchrun does not report a status of 0
    reported = {int(rank): process for rank, _, process in report}
    signalled = set(re.findall(r"Sending process (\d+) closing signal", stderr))
    begun = [rank for rank in ranks if rank in codes or (folder / failure_files.STACK_FILE.format(rank)).exists()]
    # A rank that is ended while it starts has not yet written its process id.
    ids = {rank: failure_files.read_or_empty(folder / failure_files.PROCESS_ID_FILE.format(rank)) for rank in begun}
    processes = {rank: reported.get(rank) or ids[rank] for rank in begun}
    ended_by_torchrun = {rank for rank, process in processes.items() if process in signalled}
    raised = failure_files.read_errors(folder, world)
    # A program may answer SIGTERM with an exit status, or by finishing.
    errors = {
        rank: error for rank, error in raised.items() if error["type"] != "SystemExit" or rank not in ended_by_torchrun
    }
    first = min((float(error["time"]) for error in errors.values()), default=0.0)
    results = {rank: folder / failure_files.RESULT_FILE.format(rank) for rank in begun}
    finished = [
        rank
        for rank, path in results.items()
        if path.exists() and (rank not in ended_by_torchrun or path.stat().st_mtime < first)
    ]
    paths = {rank: folder / failure_files.STACK_FILE.format(rank) for rank in ranks}
    dumped = {rank: stack for rank, path in paths.items() if (stack := failure_files.read_or_empty(path))}
    handled = failure_files.read_errors(folder / failure_files.HANDLED_ERRORS_FOLDER, world)
    forced = set(re.findall(r"Unable to shutdown process (\d+) via", stderr))
    killed = [
        rank for rank in ended_by_torchrun if codes.get(rank) == -signal.SIGKILL or processes[rank] in forced or hung
    ]
    return LaunchEvidence(
        world,
        exit_codes={r: codes.get(r, 0) for r in begun if r not in ended_by_torchrun} if status >= 0 else codes,
        errors=errors,
        other_errors={
            name: error
            for name in (failure_files.STARTED, failure_files.SCRIPT)
            if (error := failure_files.read_error(folder, name))
        },
        handled_errors={rank: error for rank, error in handled.items() if not stacks.has_ended(dumped.get(rank, ""))},
        stacks=dumped,
        calls=read_calls(folder, world),
        finished=tuple(finished),
        unresponsive=tuple(sorted({*killed} - {*errors, *dumped, *finished})),
        stderr=stderr,
        logs=logs,
        hung=hung,
    )


def blames_others(message: str) -> bool:
    """Return True if an error's message reports that other ranks were lost or did not join."""
    return bool(_TIMED_OUT.search(message) or _LOST_PEER.search(message))


def is_consequence(error: Error) -> bool:
    """Return True if an error began with another rank, also if it was raised while such an error was handled."""
    return blames_others(error["before"][-1][1] if error["before"] else error["message"])
