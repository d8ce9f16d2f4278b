"""Checks of the rest of a training step: random states, schedulers, finite numbers, devices, collectives, the end."""

import math
import re

from dpbook.core import plural, ranks_in_words
from dpbook.runs.audit.findings import CheckResult, check, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update, first_deviating_rank
from dpbook.runs.launch import MEMORY_PREFIX
from dpbook.runs.watching.journal import FINISHED_FILE, Event, place_of_error


@check("random", "the ranks' random numbers differ", "chapter 03")
def random(run: RunJournals) -> CheckResult | None:
    """Compare the random states at the beginning of forwards that draw random numbers."""
    drawn = [forwards for update in run.updates for forwards in run.forwards_in_step(update) if forwards[0]["drawn"]]
    if not drawn:
        return None
    alike = [forwards for forwards in drawn if len({forward["random"] for forward in forwards}) < len(forwards)]
    if alike:
        share = "their forwards" if len(alike) == len(drawn) else f"{len(alike)} of {len(drawn)} forwards"
        message = f"ranks begin {share} with the same random state: they draw the same numbers, and dropout drops the "
        message += "same units on all. The gradient is right on average, but noisier than necessary; seed with "
        message += "seed + rank after the model is created"
        return CheckResult("WARN", message, place=alike[0][0]["place"])
    return passed(f"{plural(len(drawn), 'forward')} that draw{'s' if len(drawn) == 1 else ''}")


@check("scheduler", "a scheduler steps at most once an update", "chapter 04")
def scheduler(run: RunJournals) -> CheckResult | None:
    """Count the steps of each scheduler between two steps of an optimizer."""
    steps: list[int] = []
    for update in run.updates[1:]:
        others = {about[0].get("id") for number, about in run.optimizers.items() if number != update.optimizer}
        events = [event for event in update.of("scheduler")[0] if event.get("of") not in others]
        for number in {event["scheduler"] for event in events}:
            mine = [event for event in events if event["scheduler"] == number]
            by_accelerate = all(event.get("by_accelerate") for event in mine)
            count = len(mine) // run.world if by_accelerate else len(mine)
            steps.append(count)
            if count > 1:
                # the first step follows the update before; one between two backwards belongs to a micro-batch
                first = next((event["at"] for event in update.of("backward")[0]), mine[-1]["at"])
                between = [event for event in mine if event["at"] > first]
                pattern = ", as often as there are ranks" if len(mine) == run.world else ""
                pattern = ", once for each micro-batch" if between else pattern
                message = f"{mine[0]['name']} steps {count} times an update{pattern}: right only if its "
                place = (between or mine[1:])[0]["place"]
                return CheckResult("WARN", f"{message}length is counted so", None, None, update.number, place)
    return passed(plural(len(steps), "update")) if steps else None


@check("finite", "losses and gradients are finite", "chapter 13", after=("scaled", "scaler"))
def finite(run: RunJournals) -> CheckResult | None:
    """Find the first NaN or infinity in an input, a loss or a gradient; a gradient scaler expects infinities."""
    scaled = any(run.of("scaler"))
    usual: set[str] = set()  # inputs that are not finite in an update whose losses are, such as an attention mask
    for update in run.updates:
        if result := _first_infinite(update, scaled, usual):
            return result
        usual.update(event["infinite"] for forwards in update.of("forward") for event in forwards)
    for update in run.updates:
        for rank, forwards in enumerate(update.of("forward")):
            used = [each["batch"] for each in run.used_forwards[rank].values() if each["batch"]]
            loops = [loop for *loop, _, _ in used]
            for event in forwards:
                *loop, _, _ = batch = event["batch"] or [None, None]
                if event["infinite"] and batch not in used and loop in loops:  # of a loop that trains the model
                    message = f"the model's {event['infinite']}, and no backward uses this batch"
                    return CheckResult("WARN", message, rank, None, update.number, event["place"])
    return passed(f"in the backwards of {plural(len(run.updates), 'update')}") if run.updates else None


def _first_infinite(update: Update, scaled: bool, usual: set[str]) -> CheckResult | None:
    for rank, events in enumerate(update.before):
        for event in events:
            if event["kind"] == "backward" and event["value"] is not None and not math.isfinite(event["value"]):
                if scaled and math.isinf(event["value"]):
                    continue
                inputs = [each["infinite"] for each in events if each["kind"] == "forward"]
                odd = next((each for each in inputs if each and each not in usual), "")
                reason = f", and the model's {odd}" if odd else "" if any(inputs) else ", from a finite input"
                message = f"the loss is {event['value']}{reason}"
                return CheckResult("FAIL", message, rank, None, update.number, event["place"])
    infinite = [step["infinite"] for step in update.steps]
    if any(infinite) and not scaled:
        # before averaging: afterwards every rank has the infinity
        local = [step["own_infinite"] for step in update.steps]
        names = local if any(local) else infinite
        rank = next(rank for rank, of_rank in enumerate(names) if of_rank)
        message = f"{plural(len(names[rank]), 'gradient')} not finite, although the loss is"
        message += ", on this rank alone before they were averaged" if sum(map(bool, local)) == 1 else ""
        return CheckResult("FAIL", message, rank, names[rank][0], update.number, update.steps[rank]["place"])
    return None


@check("devices", "every rank has a device of its own", "chapter 09")
def devices(run: RunJournals) -> CheckResult | None:
    """Check that no two ranks have their parameters on the same GPU; not applicable without GPUs."""
    optimizers = list(run.optimizers.values())
    on_gpus = [any(device.startswith("cuda") for device in each["devices"]) for about in optimizers for each in about]
    if not on_gpus or not all(on_gpus):
        return None
    of_ranks = [", ".join(event["devices"]) for event in optimizers[0]]
    if len(set(of_ranks)) < len(of_ranks):
        message = f"several ranks have their parameters on {of_ranks[0]}: call torch.cuda.set_device(local_rank)"
        return CheckResult("FAIL", message, of_ranks.index(of_ranks[-1]))
    return passed(", ".join(of_ranks))


@check("collectives", "all ranks call the same collectives", "chapter 09", after=("unused",))
def collectives(run: RunJournals) -> CheckResult | None:
    """Compare the collectives that the script calls itself, in order, over all ranks."""
    calls = run.of("collective")
    for number, events in enumerate(zip(*calls, strict=False), 1):
        rank = first_deviating_rank([_signature(event) for event in events])
        if rank is not None:
            other = next(each for each in range(run.world) if each != rank)
            message = f"call {number} is {_signature(events[rank])} on rank {rank} and {_signature(events[other])} on "
            return CheckResult("FAIL", f"{message}rank {other}", rank, None, None, events[rank]["place"])
    return passed(plural(min(map(len, calls)), "call")) if any(calls) else None


def _signature(event: Event) -> str:
    sized = event["name"] in ("all_reduce", "broadcast", "reduce") and event["shape"] is not None
    return f"{event['name']} of {tuple(event['shape'])} {event['dtype']}" if sized else str(event["name"])


@check("gathered", "what is gathered carries its gradient", "chapter 09")
def gathered(run: RunJournals) -> CheckResult | None:
    """Warn of a loss that uses what `all_gather` or `all_reduce` returned: autograd does not record these calls."""
    for rank, events in enumerate(run.of("backward")):
        for copies in filter(None, (event.get("gathered") for event in events)):
            if copies["in_loss"]:
                call, values = copies["call"], "copies" if copies["call"] == "all_gather" else "sums"
                message = f"{call} gives {values} without a gradient, and the loss uses them: the other ranks' losses "
                message += f"give this rank no gradient; torch.distributed.nn.functional.{call} has one"
                return CheckResult("WARN", message, rank, None, None, copies["place"])
    return None


@check("watching", "the script could be watched")
def watching(run: RunJournals) -> CheckResult | None:
    """Report an error of the recorder itself, after which some checks know less; otherwise not applicable."""
    failed = [(rank, event) for rank, events in enumerate(run.of("trouble")) for event in events]
    return CheckResult("----", f"not tested completely: {failed[0][1]['error']}", failed[0][0]) if failed else None


@check("end", "the run finishes without an error", "chapter 09", after=("unused", "twice", "collectives", "batches"))
def end(run: RunJournals) -> CheckResult | None:
    """Report the error that ended the run, as `dpbook launch` does, with the memory of the ranks if it is known."""
    first, *rest = run.ended.splitlines() or [""]
    memory = [line for line in rest if line.startswith(MEMORY_PREFIX)]
    finished = [run.folder and (run.folder / FINISHED_FILE.format(rank)).exists() for rank in range(run.world)]
    if not first:
        return None
    if any(finished) and re.match(r"ranks? [\d, ]+ finished \(status 0\)", first):
        ended = ranks_in_words([rank for rank, done in enumerate(finished) if done])
        return untested(f"the audit ended {ended} after --updates updates, others had made fewer: try --updates 0")
    rank = re.match(r"rank (\d+) failed first", first)
    place = place_of_error(run.ended) if rank else None
    return CheckResult("FAIL", "; ".join([first, *memory]), int(rank[1]) if rank else None, place=place)
