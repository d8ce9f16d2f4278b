"""Rules that name the cause of a failed launch. Each makes a sentence of the evidence, or returns "".

The sentence names the rank at fault. A rank that waited for others and lost them, or waited too long, is not at fault,
although it is often the only one that raised.
"""

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from dpbook.core import ranks_in_words
from dpbook.ranks import failure_files
from dpbook.runs.postmortem.collective_calls import describe_mismatch, name_call
from dpbook.runs.postmortem.evidence import Error, LaunchEvidence, blames_others, is_consequence, read_evidence

_SIZES_DIFFER = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""gloo's error for a message that is larger than the tensor that waits for it, both in bytes."""
_CAUGHT = re.compile(r"Caught (\w+) in (.*?)\.\nOriginal Traceback.*^(?:[\w.]+\.)?\1: (.*)", re.DOTALL | re.MULTILINE)
"""torch's form of an error of a data-loading process: its type, the process, and at the end its message."""
_SPAWNED = re.compile(
    r"\s*-- Process (\d+) terminated with the following error:\n.*^(?:[\w.]+\.)?(\w+): (.*?)\s*\Z",
    re.DOTALL | re.MULTILINE,
)
"""torch's form of an error in a process of ``torch.multiprocessing.spawn``: its number, then a traceback."""
_WORLD_SIZE = re.compile(r"\d+/(\d+) clients joined|world_size=(\d+)")
"""Number of ranks that a rank waited for in `init_process_group`, in an error of the store or of the guard."""


def why_it_failed(
    folder: Path, world: int, timeout: float, status: int, stderr: str, logs: Path, *, hung: bool = False
) -> str:
    """Return the sentence of the first rule that applies; the other parameters are those of `read_evidence`."""
    evidence = read_evidence(folder, world, status, stderr, logs, hung=hung)
    sentences = (rule(evidence) for rule in RULES)
    return next(filter(None, sentences), "") or failure_files.cause_of_failure(folder, world, timeout, {}, stderr)


def died(evidence: LaunchEvidence) -> str:
    """A rank was killed by a signal, or exited without a report.

    SIGABRT is not a cause yet: gloo aborts a rank when it receives a message of another size.
    """
    for rank, code in evidence.exit_codes.items():
        if code < 0 and code != -signal.SIGABRT:
            return _killed(evidence, rank)
        if code >= 0 and rank not in {*evidence.errors, *evidence.stacks, *evidence.finished}:
            sentence = f"rank {rank} died: it exited with status {code}; the other ranks were stopped"
            return sentence + failure_files.end_of_stderr(evidence.logs, rank)
    return ""


def raised(evidence: LaunchEvidence) -> str:
    """A rank raised an error that does not blame another rank; of several such errors the first in time counts."""
    return _raised(evidence, evidence.errors)


def failed_while_handling(evidence: LaunchEvidence) -> str:
    """The others timed out on a rank that was handling such an error, and that perhaps waited for them meanwhile."""
    return _raised(evidence, evidence.handled_errors) if evidence.timed_out() else ""


def _raised(evidence: LaunchEvidence, errors: Mapping[int, Error]) -> str:
    causes = {rank: error for rank, error in errors.items() if not is_consequence(error)}
    if not causes:
        return ""
    rank, first = min(causes.items(), key=lambda item: float(item[1]["time"]))
    when = "" if first.get("joined", True) or evidence.world == 1 else ", before it joined the process group"
    return f"rank {rank} failed first{when}: {_describe(first)}"


def _describe(error: Error) -> str:
    """Return type and message of the first error of a chain that blames no other rank, and the whole traceback."""
    chain = [[error["type"], error["message"]], *error["before"]]
    causes_of_chain = [link for link in chain if not blames_others(link[1])]
    # A program may answer an earlier error with an exit status alone.
    errors_of_chain = [link for link in causes_of_chain if link[0] != "SystemExit" or not link[1].isdigit()]
    kind, message = (errors_of_chain or causes_of_chain or chain)[0]
    if caught := _CAUGHT.match(message):
        kind, message = caught[1], f"{caught[3].strip()} (in {caught[2]})"
    elif spawned := _SPAWNED.match(message):
        kind, message = spawned[2], f"{spawned[3]} (in process {spawned[1]} of those that the script starts itself)"
    return f"{f'{kind}: {message}' if message else kind}\n\n{error['traceback'].rstrip()}"


def waited_for_too_many(evidence: LaunchEvidence) -> str:
    """The script gave `init_process_group` another world size than that of the launch."""
    for error in evidence.errors.values():
        wanted = _WORLD_SIZE.search(error["message"]) if failure_files.JOIN_FUNCTION in error["traceback"] else None
        size = int(wanted[1] or wanted[2]) if wanted else evidence.world
        if size != evidence.world:
            asked = f"the script asks {failure_files.JOIN_FUNCTION} for {size} ranks, and {evidence.world} were started"
            return f"{asked}: without world_size and rank it takes the launch's{_errors(evidence)}"
    return ""


def obeyed_sigterm(evidence: LaunchEvidence) -> str:
    """One rank alone received SIGTERM, and exited before the others reached an update after which all could save."""
    ended = [rank for rank, code in evidence.exit_codes.items() if code == 128 + signal.SIGTERM]
    if not ended or ended[0] in {*evidence.errors, *evidence.finished}:
        return ""
    return f"rank {ended[0]} received SIGTERM and exited: {evidence.describe_positions()}{_errors(evidence)}"


def called_differently(evidence: LaunchEvidence) -> str:
    """The ranks' collectives differ: in the tensors of one call, or because one rank skipped it."""
    mismatch = describe_mismatch(evidence.calls)
    return mismatch and f"{mismatch}{_errors(evidence)}"


def sizes_differed(evidence: LaunchEvidence) -> str:
    """gloo received more bytes than the tensor of a rank's call has."""
    outputs = [evidence.stderr, *(failure_files.last_stderr(evidence.logs, rank) for rank in evidence.stacks)]
    sizes = _SIZES_DIFFER.search("\n".join([*outputs, *(error["message"] for error in evidence.errors.values())]))
    if not sizes:
        return ""
    difference = f"gloo received {sizes[1]} bytes where {sizes[2]} were expected"
    return f"the ranks' calls do not match: {evidence.describe_positions() or difference}\n{difference}"


def aborted(evidence: LaunchEvidence) -> str:
    """A rank aborted, and no earlier rule knows why."""
    codes = evidence.exit_codes.items()
    return next((_killed(evidence, rank) for rank, code in codes if code == -signal.SIGABRT), "")


def stopped_responding(evidence: LaunchEvidence) -> str:
    """While others waited, a rank did not react to SIGTERM either."""
    if not evidence.unresponsive:
        return ""
    ranks = ranks_in_words(evidence.unresponsive)
    return f"{ranks} stopped responding and had to be killed; {evidence.describe_positions()}{_errors(evidence)}"


def finished_early(evidence: LaunchEvidence) -> str:
    """A rank's script had ended when the others lost it.

    If a rank is outside of any collective, though, the others waited for that one.
    """
    waited_for_another = evidence.timed_out() and evidence.absent_ranks()
    if not evidence.finished or not (evidence.errors or evidence.hung) or waited_for_another:
        return ""
    others = [rank for rank in sorted({*evidence.errors, *evidence.stacks}) if rank not in evidence.finished]
    missed = evidence.missed_call(evidence.finished[0])
    call = f": {name_call(evidence.calls, missed)}" if missed else ""
    joined = f"; {ranks_in_words(evidence.finished[:1])} had joined {missed.number - 1}" if missed else ""
    positions = evidence.describe_positions(others)
    return f"{ranks_in_words(evidence.finished)} finished (status 0) while {positions}{call}{joined}{_errors(evidence)}"


def never_joined(evidence: LaunchEvidence) -> str:
    """Others timed out, and this rank was elsewhere, perhaps in a later call of another group."""
    absent = (evidence.absent_ranks() or evidence.ranks_past_call()) if evidence.timed_out() else []
    behind = [rank for rank in absent if evidence.missed_call(rank)] or absent
    if not behind:
        return ""
    missed = evidence.missed_call(behind[0])
    call = f" {name_call(evidence.calls, missed)}" if missed else ""
    one = len(behind) == 1
    at = f"it {evidence.describe_position(behind[0])}" if one else evidence.describe_positions(behind)
    waiting = evidence.describe_positions(sorted(evidence.waiting_ranks() - {*behind}))
    return f"{ranks_in_words(behind)} never joined{call}: {at}{f'; {waiting}' if waiting else ''}{_errors(evidence)}"


def waited_for_each_other(evidence: LaunchEvidence) -> str:
    """All ranks waited, in different calls."""
    if not evidence.timed_out() or len(set(evidence.waiting_calls().values())) < 2:
        return ""
    return f"the ranks waited in different collectives: {evidence.describe_positions()}{_errors(evidence)}"


def script_failed(evidence: LaunchEvidence) -> str:
    """A process that was to become a rank raised, or that of a script which starts its ranks itself."""
    subjects = {
        failure_files.STARTED: "a process that the script started failed before it joined the process group",
        failure_files.SCRIPT: "the script failed in the process that starts its ranks",
    }
    described = (f"{subjects[name]}: {_describe(error)}" for name, error in evidence.other_errors.items())
    return next(described, "")


def fault_unknown(evidence: LaunchEvidence) -> str:
    """Some ranks lost others or timed out, and none of the ranks that are known here is at fault."""
    if not evidence.errors and not evidence.hung:
        return ""
    return f"the rank at fault is unknown: {evidence.describe_positions()}{_errors(evidence)}"


RULES: tuple[Callable[[LaunchEvidence], str], ...] = (
    died, raised, waited_for_too_many, obeyed_sigterm, failed_while_handling, called_differently, sizes_differed,
    aborted, stopped_responding, finished_early, never_joined, waited_for_each_other, script_failed, fault_unknown,
)  # fmt: skip
"""All rules, in this order: the first that applies gives the sentence."""


def _killed(evidence: LaunchEvidence, rank: int) -> str:
    number = signal.Signals(-evidence.exit_codes[rank]).name
    memory = " (as the kernel does when memory runs out)" if number == "SIGKILL" else ""
    position = evidence.describe_position(rank)
    place = f"; it {position}" if position else ""
    stderr = failure_files.end_of_stderr(evidence.logs, rank)
    return f"rank {rank} died: killed by {number}{memory}{place}; the other ranks were stopped{stderr}"


def _errors(evidence: LaunchEvidence) -> str:
    """Return the errors of the ranks that waited, on lines of their own."""
    lines = [f"  rank {rank}: {error['type']}: {error['message']}" for rank, error in sorted(evidence.errors.items())]
    return "".join(f"\n{line.splitlines()[0]}" for line in lines)
