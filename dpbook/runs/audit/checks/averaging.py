"""Checks of the averaging: one group, one average per backward, of whole gradients, while backward still runs."""

import math
import statistics

from dpbook.core import plural
from dpbook.runs.audit.checks.definition import check, enumerated
from dpbook.runs.audit.findings import Found, passed, untested
from dpbook.runs.audit.journals import Seen, Update, first_difference, odd_one
from dpbook.runs.watching.journal import Event

LATE = 0.9
"""The share of backward after which an all-reduce can hide behind no more of it."""


@check("group", "the ranks form one process group", "chapter 11")
def group(seen: Seen) -> Found | None:
    """What each rank has at its first update."""
    for about in seen.optimizers:
        for rank, event in enumerate(about):
            if event["group"] != seen.world:
                has = f"a group of {event['group']}" if event["group"] else "no process group"
                told = f"{seen.world} ranks were started and this one has {has}: it trains by itself (call "
                return Found("FAIL", f"{told}init_process_group, with what the environment says)", rank, None, 1)
    return passed(f"{plural(seen.world, 'rank')}") if seen.optimizers else None


@check("twice", "every gradient comes once in a backward", "chapter 11")
def twice(seen: Seen) -> Found | None:
    """Silent unless torch's DDP has given up: its hooks count one gradient for each parameter."""
    if "mark a variable ready only once" not in seen.ended:
        return None
    last = max((events[-1] for events in seen.of("backward") if events), key=lambda event: event["at"], default=None)
    told = (
        "a parameter is used in two re-entrant checkpoints, or in two backwards: checkpoint(…, use_reentrant=False), "
    )
    return Found("FAIL", f"{told}or DDP(…, static_graph=True)", place=last["place"] if last else None)


@check("overlap", "all-reduces begin while backward runs", "chapter 12")
def overlap(seen: Seen) -> Found | None:
    """How many all-reduces torch's DDP sends an update, and when the first begins; said of compiled models."""
    compiled = any("OptimizedModule" in event["wrappers"] for about in seen.optimizers for event in about)
    sent = [event["sent"] for event in seen.of("stepped")[0] if event.get("sent")] if seen.ranks else []
    if not compiled or not sent:
        return None
    calls, begun = sent[-1]["all_reduces"], statistics.median(each["begun"] for each in sent)
    told = f"{plural(calls, 'all-reduce')} an update, the first after {begun:.0%} of backward"
    if calls > 1 and begun > LATE:
        return Found("WARN", f"{told}: the compiled model gives all gradients at its end, so no all-reduce hides")
    return passed(told)


@check("sync", "the last micro-batch is averaged over the ranks", "chapter 10", after=("unused",))
def sync(seen: Seen) -> Found | None:
    """Under a wrapper that knows `no_sync`: what the flag was at the forward before the last backward."""
    judged = 0
    for update in seen.updates:
        forwards, backwards = update.of("forward"), update.of("backward")
        if not all(forwards) or not all(backwards) or forwards[0][-1]["sync"] is None:
            continue
        judged += 1
        differs = first_difference([step["gradients"] for step in update.steps], seen.shared(update.optimizer))
        if differs and any(of_rank[-1]["sync"] is False for of_rank in forwards):
            rank = next(rank for rank, of_rank in enumerate(forwards) if of_rank[-1]["sync"] is False)
            forward, backward = forwards[rank][-1], backwards[rank][-1]
            late = "the flag is set after forward, which has then prepared no averaging"
            told = late if backward["sync"] else "forward and backward are inside no_sync"
            return Found("FAIL", told, rank, differs[0], update.number, forward["place"])
    return passed(_synced(seen)) if judged else None


def _synced(seen: Seen) -> str:
    flags = [event["sync"] for event in seen.of("forward")[0] if event["sync"] is not None]
    return f"{sum(flags)} of {plural(len(flags), 'forward')} averaged, {plural(len(seen.updates), 'update')}"


@check("clip", "clipping sees the averaged gradient", "chapter 10", after=("sync",))
def clip(seen: Seen) -> Found | None:
    """All ranks must get the same norm: one of a rank's own gradient is its own."""
    judged = 0
    for update in seen.updates:
        for clips in update.in_step("clip"):
            norms = [each["norm"] for each in clips]
            if any(norm is None or not math.isfinite(norm) for norm in norms):
                continue
            judged += 1
            if max(norms) - min(norms) > 1e-5 * max(norms) and seen.shared(update.optimizer):
                told = f"norms {', '.join(f'{norm:.4g}' for norm in norms)}: each rank clips its own gradient"
                rank = odd_one([round(norm, 9) for norm in norms]) or 0
                return Found("FAIL", told, rank, None, update.number, clips[rank]["place"])
    return passed(f"{plural(judged, 'norm')}, the same on all ranks") if judged else None


@check("scaled", "clipping sees the gradient without the scaler's factor", "chapter 11")
def scaled(seen: Seen) -> Found | None:
    """`unscale_` comes before clipping."""
    clips = [(rank, event) for rank, events in enumerate(seen.of("clip")) for event in events]
    if not clips or not any(seen.of("scaler")):
        return None
    wrong = next(((rank, event) for rank, event in clips if event["scaled"]), None)
    if wrong:
        rank, event = wrong
        told = "the gradients are clipped while they are still multiplied by the scaler: call scaler.unscale_ before"
        return Found("FAIL", told, rank, None, None, event["place"])
    return passed(plural(len(clips), "call"))


@check("scaler", "all ranks scale alike and skip the same steps", "chapter 11", after=("clip", "sync"))
def scaler(seen: Seen) -> Found | None:
    """The gradient scaler's factor after each of its updates."""
    scales = [[event["scale"] for event in events] for events in seen.of("scaler")]
    if not all(scales):
        return None
    for number, values in enumerate(zip(*scales, strict=False), 1):
        rank = odd_one(values)
        if rank is not None:
            told = f"after its update {number} the factor is {', '.join(f'{value:g}' for value in values)}"
            return Found("FAIL", told, rank, None, number, seen.of("scaler")[rank][number - 1]["place"])
    return passed(f"{plural(len(scales[0]), 'update')}, factor {scales[0][-1]:g}")


@check("unused", "every parameter that is trained gets a gradient on every rank", "chapter 08")
def unused(seen: Seen) -> Found | None:
    """The parameters without a gradient at a step: an error where the ranks differ, or where the run failed over it."""
    for update in seen.updates:
        shared = seen.shared(update.optimizer)
        missing = [[name for name in step["missing"] if name in shared] for step in update.steps]
        rank = odd_one(missing)
        if rank is not None:
            rank = rank if missing[rank] else next(r for r, names in enumerate(missing) if names)
            return _without(missing[rank], rank, update.steps[rank])
    if "finished reduction in the prior iteration" in seen.ended or "UnusedParameters" in seen.ended:
        for rank, steps in enumerate(seen.of("step")):  # others may have been ended before theirs
            for step in steps:
                if step["missing"]:
                    return _without(step["missing"], rank, step)
    never = _never(seen.updates)
    if never:
        return Found("WARN", f"no rank has a gradient for {enumerated(never)}: it is never trained", None, never[0])
    if not seen.updates:
        return untested("no update was seen")
    return passed(plural(len(seen.updates), "update"))


def _without(names: list[str], rank: int, step: Event) -> Found:
    told = f"no gradient for {enumerated(names)}: freeze it, use it, or wrap with find_unused_parameters"
    return Found("FAIL", told, rank, names[0], step["update"], step["place"])


def _never(updates: tuple[Update, ...]) -> list[str]:
    """What got no gradient in any update of its optimizer, on any rank."""
    by_optimizer: dict[int, set[str]] = {}
    for update in updates:
        for step in update.steps:
            missing = set(step["missing"])
            by_optimizer[update.optimizer] = by_optimizer.get(update.optimizer, missing) & missing
    return sorted(set().union(*by_optimizer.values()))
