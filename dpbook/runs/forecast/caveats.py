"""What is odd about a script that was measured, and what the forecast leaves out, in words."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpbook.core import milliseconds
from dpbook.runs.forecast.update_times import Timed

MUCH = 0.1
"""The share of an update outside of forward, backward and optimizer that is told."""
SPREAD = 1.25
"""Updates differ where those of the third quarter take so many times those of the first."""


def notes(model: Mapping[str, Any], updates: Sequence[Timed], order: Sequence[int]) -> Iterator[str]:
    """One after another, of the ``updates`` that count and what is known of the ``model``; ``order``: its gradients."""
    yield from _of_the_updates(updates)
    yield from _of_the_model(model, order)


def _of_the_updates(updates: Sequence[Timed]) -> Iterator[str]:
    if len({tuple(number for number, _ in one.gaps) for one in updates}) > 1:
        yield "gradients do not become ready in the same order in every update; that of the last one counts"
    other = statistics.median(one.other / one.alone for one in updates)
    if other > MUCH:
        yield f"{other:.0%} of an update is outside of forward, backward and optimizer (data?): no link changes it"
    times = sorted(one.alone for one in updates)
    short, long = times[len(times) // 4], times[3 * len(times) // 4]
    if len(times) >= 4 and long > SPREAD * short:
        yield f"updates differ: half of them take {milliseconds(short)} to {milliseconds(long)}; medians are forecast"


def _of_the_model(model: Mapping[str, Any], order: Sequence[int]) -> Iterator[str]:
    missing = [tensor["name"] for number, tensor in enumerate(model["tensors"]) if number not in set(order)]
    if missing:
        yield f"no gradient for {', '.join(missing[:3])} ({len(missing)} in all): left out, though DDP sends them"
    if model["device"] == "cpu" and model["world"] == 1:
        yield "on a CPU: each rank is taken to have a machine like this to itself"
    if model["own_hook"]:
        yield "its communication hook is left out: gradients are priced as they are"
    if model["world"] > 1 and not model["wrapped"]:
        yield "no DistributedDataParallel: averaging of its own is counted as the optimizer's"
    if model["buffers"] and model["wrapped"]:
        yield f"left out: DDP's broadcast of {model['buffers']} buffers before a forward"
    if model["compiled"]:
        yield "a compiled model: its forward is counted as other"
