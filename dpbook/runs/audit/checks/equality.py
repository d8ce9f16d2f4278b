"""Do the replicas start equal, step with the same gradients and rates, and stay equal?"""

from dpbook.core import plural
from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import Found, passed, untested
from dpbook.runs.audit.journals import Seen, first_difference, odd_one


@check("start", "replicas start equal", "chapter 01", after=("group",))
def start(seen: Seen) -> Found | None:
    """The parameters before the first update."""
    first = [update for update in seen.updates if update.number == 1]
    if not first:
        return untested("no update was seen")
    compared = 0
    for update in first:
        names = seen.shared(update.optimizer)
        compared += len(names)
        differs = first_difference([step["before"] for step in update.steps], names)
        if differs:
            tensor, rank, number = differs
            told = f"before the first update {plural(number, 'tensor')} of {len(names)} differ: give all ranks the same"
            return Found("FAIL", f"{told} (the same seed, a broadcast, or a wrapper)", rank, tensor, 0)
    return passed(f"{plural(compared, 'tensor')}, bit for bit") if compared else None


@check(
    "gradients",
    "all ranks step with the same gradient",
    "chapter 01",
    after=("group", "sync", "unused", "clip", "scaled", "scaler"),
)
def gradients(seen: Seen) -> Found | None:
    """The gradients at each step, after whatever averages them."""
    compared = 0
    for update in seen.updates:
        names = seen.shared(update.optimizer)
        compared += bool(names)
        differs = first_difference([step["gradients"] for step in update.steps], names)
        if differs:
            tensor, rank, number = differs
            told = (
                f"{number} of {plural(len(names), 'gradient')} differ; {_who_averages(seen, update.optimizer, tensor)}"
            )
            return Found("FAIL", told, rank, tensor, update.number, update.steps[rank]["place"])
    return passed(plural(compared, "update")) if compared else None


def _who_averages(seen: Seen, optimizer: int, tensor: str) -> str:
    """Why nothing averaged ``tensor``, as far as is known."""
    about = next(each for each in seen.optimizers if each[0]["optimizer"] == optimizer)[0]
    if not about["wrappers"]:
        called = any(event["name"] != "barrier" for events in seen.of("collective") for event in events)
        return "no wrapper averages them" + (", and what the script sends does not make them equal" if called else "")
    if not any(event["wrapped"] for events in seen.of("forward") for event in events):
        return f"no forward goes through {about['wrappers'][0]}, which has them: call it, not its module"
    if tensor in about["unwrapped"]:
        return f"{tensor} is in no wrapper"
    return f"although {about['wrappers'][0]} has them"


@check("rates", "all ranks have the same learning rate", "chapter 04")
def rates(seen: Seen) -> Found | None:
    """The learning rates of all parameter groups at each step."""
    for update in seen.updates:
        rank = odd_one([step["rates"] for step in update.steps])
        if rank is not None:
            told = "; ".join(f"rank {each}: {step['rates'][0]:.4g}" for each, step in enumerate(update.steps))
            return Found("FAIL", told, rank, None, update.number, update.steps[rank]["place"])
    return passed(plural(len(seen.updates), "update")) if seen.updates else None


@check(
    "replicas",
    "replicas stay equal",
    "chapter 01",
    after=("group", "start", "sync", "gradients", "rates", "clip", "unused", "scaler"),
)
def replicas(seen: Seen) -> Found | None:
    """The parameters after each update."""
    compared = 0
    for update in seen.updates:
        if not update.stepped:
            continue
        names = seen.shared(update.optimizer)
        compared += bool(names)
        differs = first_difference([after["parameters"] for after in update.stepped], names)
        if differs:
            tensor, rank, number = differs
            told = f"after update {update.number} {plural(number, 'tensor')} of {len(names)} differ"
            return Found("FAIL", told, rank, tensor, update.number, update.steps[rank]["place"])
    return passed(f"{plural(compared, 'update')}, bit for bit") if compared else None


@check("buffers", "buffers are the same on all ranks", "chapter 02")
def buffers(seen: Seen) -> Found | None:
    """What the model holds besides parameters, such as running statistics, as each forward begins."""
    compared = 0
    for update in seen.updates:
        for forwards in update.in_step("forward"):
            names = list(forwards[0]["buffers"])
            compared += bool(names)
            differs = first_difference([forward["buffers"] for forward in forwards], names)
            if differs:
                tensor, rank, number = differs
                told = f"{plural(number, 'buffer')} of {len(names)} differ as a forward begins; {_why_apart(seen)}"
                return Found("WARN", told, rank, tensor, update.number, forwards[rank]["place"])
    return passed(plural(compared, "forward")) if compared else None


def _why_apart(seen: Seen) -> str:
    flags = [event["sync"] for events in seen.of("forward") for event in events]
    if False in flags:
        return "after a forward without averaging (no_sync) the wrapper sends none, so each rank keeps its own"
    return "nothing sends them, so each rank keeps its own, and a checkpoint has those of the rank that writes it"
