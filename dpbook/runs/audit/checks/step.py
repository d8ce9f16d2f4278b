"""The rest of a training step: randomness, schedulers, numbers that are none, devices, the ranks' own messages."""

import math

from dpbook.core import plural
from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import Found, passed
from dpbook.runs.audit.journals import Seen, Update, odd_one
from dpbook.runs.launch import MEMORY_PREFIX
from dpbook.runs.watching.journal import Event


@check("random", "the ranks' dropout differs", "chapter 03")
def random(seen: Seen) -> Found | None:
    """The random state at the beginning of a forward that draws from it."""
    drawn = [forwards for update in seen.updates for forwards in update.in_step("forward") if forwards[0]["drawn"]]
    if not drawn:
        return None
    alike = sum(len({forward["random"] for forward in forwards}) == 1 for forwards in drawn)
    if alike == len(drawn):
        told = (
            "all ranks begin their forwards with one random state, so dropout drops the same everywhere: the gradient "
        )
        told += "is right on average, and noisier than it need be; seed with seed + rank once the model is made"
        return Found("WARN", told, None, None, 1, drawn[0][0]["place"])
    return passed(f"{plural(len(drawn), 'forward')} that draw{'s' if len(drawn) == 1 else ''}")


@check("scheduler", "a scheduler steps at most once an update", "chapter 04")
def scheduler(seen: Seen) -> Found | None:
    """Counted per scheduler, between two steps of an optimizer."""
    steps: list[int] = []
    for update in seen.updates[1:]:
        events = update.of("scheduler")[0]
        for number in {event["scheduler"] for event in events}:
            mine = [event for event in events if event["scheduler"] == number]
            steps.append(len(mine))
            if len(mine) > 1:
                what = "as often as there are ranks" if len(mine) == seen.world else "once for each micro-batch"
                told = f"{mine[0]['name']} steps {len(mine)} times an update"
                known = len(mine) in (seen.world, len(update.of("backward")[0]))
                told += f", {what}" if known else ""
                told += ": right only if its length is counted in these"
                return Found("WARN", told, None, None, update.number, mine[0]["place"])
    return passed(plural(len(steps), "update")) if steps else None


@check("finite", "losses and gradients are finite", "chapter 13", after=("scaled", "scaler"))
def finite(seen: Seen) -> Found | None:
    """The first NaN or infinity: of the input, the loss, or the gradient. A gradient scaler expects some."""
    scaled = any(seen.of("scaler"))
    for update in seen.updates:
        found = _first_infinite(update, scaled)
        if found:
            return found
    return passed(plural(len(seen.updates), "update")) if seen.updates else None


def _first_infinite(update: Update, scaled: bool) -> Found | None:
    for rank, events in enumerate(update.before):
        for event in events:
            if event["kind"] == "backward" and event["value"] is not None and not math.isfinite(event["value"]):
                if scaled and math.isinf(event["value"]):
                    continue
                told = f"the loss is {event['value']}{_input_too(events)}"
                return Found("FAIL", told, rank, None, update.number, event["place"])
    infinite = [step["infinite"] for step in update.steps]
    if any(infinite) and not scaled:
        own = [step["own_infinite"] for step in update.steps]  # before the averaging, after which all ranks have it
        names = own if any(own) else infinite
        rank = next(rank for rank, of_rank in enumerate(names) if of_rank)
        told = f"{plural(len(names[rank]), 'gradient')} not finite, although the loss is"
        told += ", on this rank alone before they were averaged" if sum(map(bool, own)) == 1 else ""
        return Found("FAIL", told, rank, names[rank][0], update.number, update.steps[rank]["place"])
    return None


def _input_too(events: tuple[Event, ...]) -> str:
    bad = any(event["kind"] == "forward" and not event["finite"] for event in events)
    return ", and so is some of the model's input" if bad else ", from a finite input"


@check("devices", "every rank has a device of its own", "chapter 09")
def devices(seen: Seen) -> Found | None:
    """The GPUs that hold the parameters; without any there is nothing to share out."""
    held = [
        [device for device in event["devices"] if device.startswith("cuda")]
        for about in seen.optimizers
        for event in about
    ]
    if not held or not all(held):
        return None
    of_ranks = [tuple(event["devices"]) for event in seen.optimizers[0]]
    if len(set(of_ranks)) < len(of_ranks):
        told = f"the parameters are on {', '.join(of_ranks[0])} on several ranks: torch.cuda.set_device(local rank)"
        return Found("FAIL", told, of_ranks.index(of_ranks[-1]))
    return passed(", ".join(device for devices in of_ranks for device in devices))


@check("collectives", "all ranks call the same collectives", "chapter 09", after=("unused",))
def collectives(seen: Seen) -> Found | None:
    """Those that the script calls itself, over all ranks, in their order."""
    calls = seen.of("collective")
    for number, events in enumerate(zip(*calls, strict=False), 1):
        rank = odd_one([_signature(event) for event in events])
        if rank is not None:
            other = next(each for each in range(seen.world) if each != rank)
            told = f"call {number} is {_signature(events[rank])} on rank {rank} and {_signature(events[other])} on "
            return Found("FAIL", f"{told}rank {other}", rank, None, None, events[rank]["place"])
    return passed(plural(min(map(len, calls)), "call")) if any(calls) else None


def _signature(event: Event) -> str:
    sized = event["name"] in ("all_reduce", "broadcast", "reduce") and event["shape"] is not None
    return f"{event['name']} of {tuple(event['shape'])} {event['dtype']}" if sized else str(event["name"])


@check("gathered", "what is gathered carries its gradient", "chapter 09")
def gathered(seen: Seen) -> Found | None:
    """`all_gather` of a tensor that is to be differentiated: autograd does not see it."""
    gathers = [
        (rank, event)
        for rank, events in enumerate(seen.of("collective"))
        for event in events
        if event["name"].startswith("all_gather") and event["graded"]
    ]
    if not gathers:
        return None
    rank, event = gathers[0]
    told = "all_gather gives copies without a gradient: what other ranks lose through this rank's part is missing; "
    told += "torch.distributed.nn.functional.all_gather has one"
    return Found("WARN", told, rank, None, None, event["place"])


@check("watching", "the script could be watched")
def watching(seen: Seen) -> Found | None:
    """Silent unless a watcher failed: then some of the lines know less than they might."""
    failed = [(rank, event) for rank, events in enumerate(seen.of("trouble")) for event in events]
    return Found("----", f"not all of it: {failed[0][1]['error']}", failed[0][0]) if failed else None


@check("end", "the run ends well", "chapter 09", after=("unused", "twice", "collectives", "batches"))
def end(seen: Seen) -> Found | None:
    """Why a run failed, as a launch tells it, and what the ranks held if it tells that; silent where it did not."""
    first, *rest = seen.ended.splitlines() or [""]
    return (
        Found("FAIL", "; ".join([first, *(line for line in rest if line.startswith(MEMORY_PREFIX))])) if first else None
    )
