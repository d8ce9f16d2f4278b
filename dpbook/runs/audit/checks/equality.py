"""Checks that replicas start equal, step with the same gradients and learning rates, and stay equal."""

from dpbook.core import plural
from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import CheckResult, passed, untested
from dpbook.runs.audit.journals import RunJournals, first_deviating_rank, first_difference


@check("start", "replicas start equal", "chapter 01", after=("group",))
def start(run: RunJournals) -> CheckResult | None:
    """Compare the parameters before the first update."""
    first = [update for update in run.updates if update.number == 1]
    if not first:
        return untested("no update was seen")
    compared = 0
    for update in first:
        names = run.shared(update.optimizer)
        compared += len(names)
        differs = first_difference([step["before"] for step in update.steps], names)
        if differs:
            tensor, rank, number = differs
            message = (
                f"before the first update {plural(number, 'tensor')} of {len(names)} differ: give all ranks the same"
            )
            return CheckResult("FAIL", f"{message} (the same seed, a broadcast, or a wrapper)", rank, tensor, 0)
    return passed(f"{plural(compared, 'tensor')}, bit for bit") if compared else None


@check(
    "gradients",
    "all ranks step with the same gradient",
    "chapter 01",
    after=("group", "sync", "unused", "clip", "scaled", "scaler"),
)
def gradients(run: RunJournals) -> CheckResult | None:
    """Compare the gradients at each step, after they have been averaged."""
    compared = 0
    for update in run.updates:
        names = run.shared(update.optimizer)
        compared += bool(names)
        differs = first_difference([step["gradients"] for step in update.steps], names)
        if differs:
            tensor, rank, number = differs
            message = f"{number} of {plural(len(names), 'gradient')} differ; "
            message += _reason_not_averaged(run, update.optimizer, tensor)
            return CheckResult("FAIL", message, rank, tensor, update.number, update.steps[rank]["place"])
    return passed(plural(compared, "update")) if compared else None


def _reason_not_averaged(run: RunJournals, optimizer: int, tensor: str) -> str:
    """Return the reason why ``tensor`` was not averaged, as far as it is known."""
    about = next(each for each in run.optimizers if each[0]["optimizer"] == optimizer)[0]
    if not about["wrappers"]:
        called = any(event["name"] != "barrier" for events in run.of("collective") for event in events)
        return "no wrapper averages them" + (", and what the script sends does not make them equal" if called else "")
    if not any(event["wrapped"] for events in run.of("forward") for event in events):
        return f"no forward goes through {about['wrappers'][0]}, which has them: call it, not its module"
    if tensor in about["unwrapped"]:
        return f"{tensor} is in no wrapper"
    return f"although {about['wrappers'][0]} has them"


@check("rates", "all ranks have the same learning rate", "chapter 04")
def rates(run: RunJournals) -> CheckResult | None:
    """Compare the learning rates of all parameter groups at each step."""
    for update in run.updates:
        rank = first_deviating_rank([step["rates"] for step in update.steps])
        if rank is not None:
            message = "; ".join(f"rank {each}: {step['rates'][0]:.4g}" for each, step in enumerate(update.steps))
            return CheckResult("FAIL", message, rank, None, update.number, update.steps[rank]["place"])
    return passed(plural(len(run.updates), "update")) if run.updates else None


@check(
    "replicas",
    "replicas stay equal",
    "chapter 01",
    after=("group", "start", "sync", "gradients", "rates", "clip", "unused", "scaler"),
)
def replicas(run: RunJournals) -> CheckResult | None:
    """Compare the parameters after each update."""
    compared = 0
    for update in run.updates:
        if not update.stepped:
            continue
        names = run.shared(update.optimizer)
        compared += bool(names)
        differs = first_difference([after["parameters"] for after in update.stepped], names)
        if differs:
            tensor, rank, number = differs
            message = f"after update {update.number} {plural(number, 'tensor')} of {len(names)} differ"
            return CheckResult("FAIL", message, rank, tensor, update.number, update.steps[rank]["place"])
    return passed(f"{plural(compared, 'update')}, bit for bit") if compared else None


@check("buffers", "buffers are the same on all ranks", "chapter 02")
def buffers(run: RunJournals) -> CheckResult | None:
    """Compare the model's buffers, such as running statistics, at the beginning of each forward."""
    compared = 0
    for update in run.updates:
        for forwards in update.in_step("forward"):
            names = list(forwards[0]["buffers"])
            compared += bool(names)
            differs = first_difference([forward["buffers"] for forward in forwards], names)
            if differs:
                tensor, rank, number = differs
                message = f"{plural(number, 'buffer')} of {len(names)} differ as a forward begins; "
                message += _reason_buffers_differ(run)
                return CheckResult("WARN", message, rank, tensor, update.number, forwards[rank]["place"])
    return passed(plural(compared, "forward")) if compared else None


def _reason_buffers_differ(run: RunJournals) -> str:
    flags = [event["sync"] for events in run.of("forward") for event in events]
    if False in flags:
        return "after a forward without averaging (no_sync) the wrapper sends none, so each rank keeps its own"
    return "nothing sends them, so each rank keeps its own, and a checkpoint has those of the rank that writes it"
