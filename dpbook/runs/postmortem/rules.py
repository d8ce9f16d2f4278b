"""Why a launch failed: rules, each of which makes a sentence of what the ranks left, or knows nothing.

The sentence names the rank at fault. A rank that waited for others and lost them, or waited too long, is not at fault,
although it is often the only one that raised.
"""

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpbook.ranks import failure_files
from dpbook.runs.postmortem.call_comparison import difference, name, numbered
from dpbook.runs.postmortem.evidence import Left, is_consequence, left_behind, speaks_of_others

_DIFFERS = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""What gloo says of a message that is larger than the tensor that waits for it, both in bytes."""
_CAUGHT = re.compile(r"Caught (\w+) in (.*?)\.\nOriginal Traceback.*^(?:[\w.]+\.)?\1: (.*)", re.DOTALL | re.MULTILINE)
"""How torch hands on the error of a process that loads data: its type, in which process, and its message at the end."""


def why_it_failed(
    folder: Path, world: int, timeout: float, status: int, said: str, *, logs: Path | None = None, hung: bool = False
) -> str:
    """What the first rule says that knows something, for ranks under torchrun, which ended with ``status``.

    ``logs``: the folder with the ranks' output, ``folder`` if None; ``hung``: the launcher ended them, since none of
    them went on.
    """
    left = left_behind(folder, world, status, said, logs or folder, hung=hung)
    known = (rule(left) for rule in RULES)
    return next(filter(None, known), "") or failure_files.cause_of_failure(folder, world, timeout, {}, said)


def died(left: Left) -> str:
    """A signal ended it, or it ended without a word. An abort may be gloo's answer to what another rank sent."""
    for rank, code in left.exits.items():
        if code < 0 and code != -signal.SIGABRT:
            return _died(left, rank)
        if code >= 0 and rank not in {*left.errors, *left.stacks, *left.finished}:
            how = f"rank {rank} died: it left with exit status {code}; the others were ended"
            return how + failure_files.last_words(left.logs, rank)
    return ""


def raised(left: Left) -> str:
    """An error that speaks of no other rank; of several the first in time."""
    return _raised(left, left.errors)


def handled(left: Left) -> str:
    """Others waited too long for a rank that was handling such an error, and perhaps waited for them meanwhile."""
    return _raised(left, left.handled) if left.waited_too_long() else ""


def _raised(left: Left, errors: Mapping[int, Mapping[str, Any]]) -> str:
    own = {rank: error for rank, error in errors.items() if not is_consequence(error)}
    if not own:
        return ""
    rank, first = min(own.items(), key=lambda item: float(item[1]["time"]))
    raised = [[first["type"], first["message"]], *first["before"]]
    own_words = [one for one in raised if not speaks_of_others(one[1])]
    kind, message = next((one for one in own_words if not _is_status(*one)), own_words[0])
    if caught := _CAUGHT.match(message):
        kind, message = caught[1], f"{caught[3].strip()} (in {caught[2]})"
    when = "" if first.get("joined", True) or left.world == 1 else ", before it joined"
    what = f"{kind}: {message}" if message else kind
    return f"rank {rank} failed first{when}: {what}\n\n{first['traceback'].rstrip()}"


def _is_status(kind: str, message: str) -> bool:
    """Whether an error is no more than a status with which to leave, perhaps because of the error before it."""
    return kind == "SystemExit" and message.isdigit()


def gave_up(left: Left) -> str:
    """It was asked to end, alone, and did so before the others came to where all could save."""
    ended = [rank for rank, code in left.exits.items() if code == 128 + signal.SIGTERM]
    if not ended or ended[0] in {*left.errors, *left.finished}:
        return ""
    return f"{name(ended[:1])} ended after SIGTERM, as it was asked to: {left.places()}{_errors(left)}"


def called_differently(left: Left) -> str:
    """The ranks' records differ: in the tensors of one call, or one is in a call that another has left out."""
    told = difference(left.records)
    return told and f"{told}{_errors(left)}"


def differed(left: Left) -> str:
    """gloo received more bytes than the tensor of this rank's call has."""
    words = [left.said, *(failure_files.last_stderr(left.logs, rank) for rank in left.stacks)]
    sizes = _DIFFERS.search("\n".join([*words, *(error["message"] for error in left.errors.values())]))
    if not sizes:
        return ""
    bytes_differ = f"gloo received {sizes[1]} bytes where {sizes[2]} were expected"
    return f"the ranks' calls do not match: {left.places() or bytes_differ}\n{bytes_differ}"


def aborted(left: Left) -> str:
    """A rank aborted, and nothing says more."""
    return next((_died(left, rank) for rank, code in left.exits.items() if code == -signal.SIGABRT), "")


def stopped_answering(left: Left) -> str:
    """While others waited a rank did not even end when it was asked to."""
    if not left.stopped:
        return ""
    had = "it" if len(left.stopped) == 1 else "they"
    return f"{name(left.stopped)} stopped answering: {had} had to be killed; {left.places()}{_errors(left)}"


def left_early(left: Left) -> str:
    """A rank's script had come to its end when others lost it. Where one is elsewhere, that is whom they waited for."""
    if not left.finished or not (left.errors or left.hung) or (left.waited_too_long() and left.absent()):
        return ""
    rest = [rank for rank in sorted({*left.errors, *left.stacks}) if rank not in left.finished]
    awaited = left.awaited(left.finished[0])
    call = f": {numbered(left.records, *awaited)}" if awaited else ""
    made = f"; {name(left.finished[:1])} had made {awaited[1].number - 1}" if awaited else ""
    return f"{name(left.finished)} finished (status 0) while {left.places(rest)}{call}{made}{_errors(left)}"


def never_came(left: Left) -> str:
    """Others waited too long, and this one was elsewhere, perhaps in a later call of another group."""
    absent = (left.absent() or left.passed()) if left.waited_too_long() else []
    behind = [rank for rank in absent if left.awaited(rank)] or absent
    if not behind:
        return ""
    awaited = left.awaited(behind[0])
    to = f" to {numbered(left.records, *awaited)}" if awaited else ""
    at = f"it {left.place(behind[0])}" if len(behind) == 1 else left.places(behind)
    waiting = left.places(sorted(left.waiting() - {*behind}))
    return f"{name(behind)} never came{to}: {at}{f'; {waiting}' if waiting else ''}{_errors(left)}"


def waited_for_each_other(left: Left) -> str:
    """All waited, in different calls."""
    waits = left.waits()
    if not left.waited_too_long() or len(set(waits.values())) < 2:
        return ""
    return f"the ranks waited in different calls: {left.places()}{_errors(left)}"


def in_vain(left: Left) -> str:
    """Some lost others, or waited for them in vain; none of those that are known here is at fault."""
    if not left.errors and not left.hung:
        return ""
    return f"no rank is known to be at fault: {left.places()}{_errors(left)}"


RULES: tuple[Callable[[Left], str], ...] = (
    died, raised, gave_up, handled, called_differently, differed, aborted, stopped_answering, left_early, never_came,
    waited_for_each_other, in_vain,
)  # fmt: skip
"""In this order: the first that knows something is told."""


def _died(left: Left, rank: int) -> str:
    number = signal.Signals(-left.exits[rank]).name
    memory = " (as the system does where memory runs out)" if number == "SIGKILL" else ""
    where = left.place(rank)
    place = f"; it {where}" if where else ""
    words = failure_files.last_words(left.logs, rank)
    return f"rank {rank} died: killed by {number}{memory}{place}; the others were ended{words}"


def _errors(left: Left) -> str:
    """The errors of the ranks that waited, on lines of their own."""
    lines = [f"  rank {rank}: {error['type']}: {error['message']}" for rank, error in sorted(left.errors.items())]
    return "".join(f"\n{line.splitlines()[0]}" for line in lines)
