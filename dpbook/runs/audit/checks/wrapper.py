"""Is there a group, and does the wrapper's averaging go as it should: once a backward, and while that still runs?"""

import statistics

from dpbook.core import plural
from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import Found, passed
from dpbook.runs.audit.journals import Seen

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
