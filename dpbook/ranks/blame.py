"""Why a launch failed: rules, each of which makes a sentence of what the ranks left, or knows nothing.

The sentence names the rank at fault. A rank that waited for others and lost them, or waited too long, is not at fault,
although it is often the only one that raised.
"""

import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.ranks.postmortem import (
    NOT_MET,
    PROCESS,
    RESULT,
    STACK,
    cause_of_failure,
    errors_of,
    last_words,
    text_of,
)  # fmt: skip
from dpbook.ranks.stacks import as_dumped, call, innermost

_WAITED = re.compile(
    r"Timed out waiting \d+ms|wait timeout after \d+ms|has timed out after \d+ms|failed to pass monitoredBarrier"
    rf"|Timed out after \d+ seconds waiting for clients|collective operation timeout|rank \d+ has not come|{NOT_MET}"
)
"""What the error of a rank says that waited too long for others: gloo's, the store's, NCCL's and our own words."""
_LOST = re.compile(r"gloo/|SocketImpl|Connection was likely closed|ncclRemoteError|communicator was aborted")
"""What the error of a rank says that lost another: gloo's, the store's and NCCL's words."""
_DIFFERS = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""What gloo says of a message that is larger than the tensor that waits for it, both in bytes."""


@dataclass(frozen=True)
class Left:
    """What the ranks of a launch left behind, those of this node.

    ``exits``: exit status of each that ended by itself; ``errors``: of each that raised; ``stacks``: where the others
    were when they crashed or were ended; ``finished``: whose script had come to its end; ``stopped``: who had to be
    killed; ``said``: rank 0's and torchrun's stderr.
    """

    folder: Path
    exits: Mapping[int, int]
    errors: Mapping[int, Mapping[str, Any]]
    stacks: Mapping[int, str]
    finished: tuple[int, ...]
    stopped: tuple[int, ...]
    said: str

    def place(self, rank: int) -> str:
        """Where a rank was, in words, or "" where that is not known."""
        if rank in self.finished:
            return "had finished"
        stack = self.stack(rank)
        waited = call(stack)
        return f"was in {waited}" if waited else f"was at {innermost(stack)}" if stack else ""

    def stack(self, rank: int) -> str:
        """The frames of a rank, the innermost first, or ""."""
        return as_dumped(self.errors[rank]["traceback"]) if rank in self.errors else self.stacks.get(rank, "")

    def waits(self) -> dict[int, str]:
        """Of each rank that waited for others, in which call."""
        ranks = sorted({*self.errors, *self.stacks} - {*self.finished})
        calls = {rank: call(self.stack(rank)) for rank in ranks}
        return {rank: where for rank, where in calls.items() if where}

    def waited_too_long(self) -> bool:
        """Whether a rank's patience ended; what the others then lost is a consequence."""
        return any(_WAITED.search(error["message"]) for error in self.errors.values())


def why_it_failed(folder: Path, world: int, timeout: float, status: int, said: str) -> str:
    """What the first rule says that knows something, for ranks under torchrun, which ended with ``status``."""
    left = _left(folder, world, status, said)
    known = (rule(left) for rule in RULES)
    return next(filter(None, known), "") or cause_of_failure(folder, world, timeout, {}, said)


def died(left: Left) -> str:
    """A signal ended it, or it ended without a word. An abort may be gloo's answer to what another rank sent."""
    for rank, code in left.exits.items():
        if code < 0 and code != -signal.SIGABRT:
            return _died(left, rank)
        if code >= 0 and rank not in {*left.errors, *left.stacks, *left.finished}:
            how = f"rank {rank} died: it left with exit status {code}; the others were ended"
            return how + last_words(left.folder, rank)
    return ""


def raised(left: Left) -> str:
    """An error that speaks of no other rank; of several the first in time."""
    own = {rank: error for rank, error in left.errors.items() if not _is_consequence(error)}
    if not own:
        return ""
    rank, first = min(own.items(), key=lambda item: float(item[1]["time"]))
    raised = [[first["type"], first["message"]], *first["before"]]
    kind, message = next(one for one in raised if not _speaks_of_others(one[1]))
    return f"rank {rank} failed first: {kind}: {message}\n\n{first['traceback'].rstrip()}"


def differed(left: Left) -> str:
    """gloo received more bytes than the tensor of this rank's call has."""
    words = [left.said, *(text_of(path) for path in left.folder.glob("**/stderr.log"))]
    sizes = _DIFFERS.search("\n".join([*words, *(error["message"] for error in left.errors.values())]))
    if not sizes:
        return ""
    bytes_differ = f"gloo received {sizes[1]} bytes where {sizes[2]} were expected"
    return f"the ranks' calls do not match: {_places(left) or bytes_differ}\n{bytes_differ}"


def aborted(left: Left) -> str:
    """A rank aborted, and nothing says more."""
    return next((_died(left, rank) for rank, code in left.exits.items() if code == -signal.SIGABRT), "")


def stopped_answering(left: Left) -> str:
    """While others waited a rank did not even end when it was asked to."""
    if not left.stopped:
        return ""
    had = "it" if len(left.stopped) == 1 else "they"
    return f"{_ranks(left.stopped)} stopped answering: {had} had to be killed; {_places(left)}{_errors(left)}"


def left_early(left: Left) -> str:
    """A rank's script had come to its end when others lost it. Where one is elsewhere, that is whom they waited for."""
    if not left.finished or not left.errors or (left.waited_too_long() and _absent(left)):
        return ""
    rest = [rank for rank in sorted({*left.errors, *left.stacks}) if rank not in left.finished]
    return f"{_ranks(left.finished)} finished (status 0) while {_places(left, rest)}{_errors(left)}"


def never_came(left: Left) -> str:
    """Others waited too long, and this one was elsewhere."""
    absent = _absent(left) if left.waited_too_long() else []
    if not absent:
        return ""
    at = f"it {left.place(absent[0])}" if len(absent) == 1 else _places(left, absent)
    waiting = _places(left, left.waits())
    return f"{_ranks(absent)} never came: {at}{f'; {waiting}' if waiting else ''}{_errors(left)}"


def waited_for_each_other(left: Left) -> str:
    """All waited, in different calls."""
    waits = left.waits()
    if not left.waited_too_long() or len(set(waits.values())) < 2:
        return ""
    return f"the ranks waited in different calls: {_places(left)}{_errors(left)}"


RULES: tuple[Callable[[Left], str], ...] = (
    died, raised, differed, aborted, stopped_answering, left_early, never_came, waited_for_each_other,
)  # fmt: skip
"""In this order: the first that knows something is told."""


def _left(folder: Path, world: int, status: int, said: str) -> Left:
    ranks = range(world)
    report = re.findall(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)", said)
    codes = {int(rank): int(code) for rank, code, _ in report}  # torchrun does not report a status of 0
    reported = {int(rank): process for rank, _, process in report}
    asked = set(re.findall(r"Sending process (\d+) closing signal", said))
    begun = [rank for rank in ranks if rank in codes or (folder / STACK.format(rank)).exists()]
    # A rank that is ended while it starts has not yet written its process id.
    processes = {rank: reported.get(rank) or text_of(folder / PROCESS.format(rank)) for rank in begun}
    ended = {rank for rank, process in processes.items() if process in asked}  # by torchrun
    raised = errors_of(folder, world)
    # A program may answer to SIGTERM by leaving with a status, or by coming to its end.
    errors = {rank: error for rank, error in raised.items() if error["type"] != "SystemExit" or rank not in ended}
    first = min((float(error["time"]) for error in errors.values()), default=0.0)
    results = {rank: folder / RESULT.format(rank) for rank in begun}
    finished = [r for r, path in results.items() if path.exists() and (r not in ended or path.stat().st_mtime < first)]
    stacks = {rank: stack for rank in ranks if (stack := text_of(folder / STACK.format(rank)))}
    silent = [rank for rank in begun if rank not in {*errors, *stacks, *finished}]
    stopped = [rank for rank in silent if rank in ended and codes.get(rank) == -signal.SIGKILL]
    by_themselves = {rank: codes.get(rank, 0) for rank in begun if rank not in ended} if status >= 0 else {}
    return Left(folder, by_themselves, errors, stacks, tuple(finished), tuple(stopped), said)


def _died(left: Left, rank: int) -> str:
    name = signal.Signals(-left.exits[rank]).name
    memory = " (as the system does where memory runs out)" if name == "SIGKILL" else ""
    where = left.place(rank)
    place = f"; it {where}" if where else ""
    return f"rank {rank} died: killed by {name}{memory}{place}; the others were ended{last_words(left.folder, rank)}"


def _speaks_of_others(message: str) -> bool:
    return bool(_WAITED.search(message) or _LOST.search(message))


def _is_consequence(error: Mapping[str, Any]) -> bool:
    """Whether all began with another rank: what was raised in the handling of that is a consequence too."""
    return _speaks_of_others(error["before"][-1][1] if error["before"] else error["message"])


def _absent(left: Left) -> list[int]:
    """The ranks that were ended elsewhere than in a call in which one waits for others."""
    ended = {*left.stacks} - {*left.errors, *left.finished}
    return sorted(ended - {*left.waits()})


def _places(left: Left, ranks: Iterable[int] | None = None) -> str:
    """ "rank 0 was in barrier, line 3 of main; rank 1 had finished": those of which it is known, one place once."""
    known = sorted({*left.errors, *left.stacks, *left.finished}) if ranks is None else ranks
    at: dict[str, list[int]] = {}
    for rank in known:
        at.setdefault(left.place(rank), []).append(rank)
    several = {place: place.replace("was ", "were ", 1) for place, ranks in at.items() if len(ranks) > 1}
    return "; ".join(f"{_ranks(ranks)} {several.get(place, place)}" for place, ranks in at.items() if place)


def _ranks(ranks: Iterable[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers)}"


def _errors(left: Left) -> str:
    """The errors of the ranks that waited, on lines of their own."""
    lines = [f"  rank {rank}: {error['type']}: {error['message']}" for rank, error in sorted(left.errors.items())]
    return "".join(f"\n{line.splitlines()[0]}" for line in lines)
