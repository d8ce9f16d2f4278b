"""Times of a script's updates, read from its journal, and the caveats of a forecast made from them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpbook.core import milliseconds


@dataclass(frozen=True)
class UpdateTimes:
    """Times of one update on one rank, in seconds.

    Attributes:
        other: time outside of the other parts: data, logging, anything between two micro-batches.
        forwards: time of forward, for each micro-batch.
        backwards: time of backward, until its last gradient is ready, for each micro-batch.
        gaps: for each gradient of the last backward, in order of readiness: its number and the time since the previous.
        after: time from the last sum of gradients to the end of the update: the wrapper's copies and the optimizer.
        period: time of the whole update, including the time spent waiting for sums, which is in no other field.
        early: whether a backward before the last one was synced too.
        emulated: whether the sums came over an emulated link.
    """

    other: float
    forwards: tuple[float, ...]
    backwards: tuple[float, ...]
    gaps: tuple[tuple[int, float], ...]
    after: float
    period: float
    early: bool
    emulated: bool

    @property
    def alone(self) -> float:
        """Seconds of the update without waiting."""
        return self.other + sum(self.forwards) + sum(self.backwards) + self.after


def time_update(event: Mapping[str, Any], world: int) -> UpdateTimes | None:
    """Return the times of an update on ``world`` ranks, or None if no backward computed a gradient."""
    parts = _MarkReader(event["marks"], event["synced"], world)
    if not parts.gaps:
        return None
    return UpdateTimes(
        parts.other, tuple(parts.forwards), tuple(parts.backwards), parts.gaps, parts.after, parts.last,
        any(event["synced"][:-1]), event["emulated"],
    )  # fmt: skip


class _MarkReader:
    """Assigns the time between marks (kind, seconds) to the parts of an update; ``last`` ends the assigned time."""

    def __init__(self, marks: Sequence[tuple[str | int, float]], synced: Sequence[bool], world: int) -> None:
        self.other = self.after = self.last = 0.0
        self.forwards: list[float] = []
        self.backwards: list[float] = []
        self.gaps: tuple[tuple[int, float], ...] = ()
        self._forward: float | None = None
        self._begun = self._arrived = 0.0
        self._ready: dict[int, float] = {}
        self._synced = iter(synced)
        self._world = world
        for kind, at in marks:
            if isinstance(kind, int):
                self._ready.pop(kind, None)  # a gradient that is added to twice is ready the last time
                self._ready[kind] = at
            elif kind == "arrived":
                self._arrived = at
            elif kind == "forward":
                self._forward = at if self._forward is None else self._forward
            elif kind == "backward":
                self._begun, self._arrived, self._ready = at, 0.0, {}
            elif kind == "returned":
                self._returned(at)
        end = marks[-1][1]
        self.after += end - self.last
        self.last = end

    def _returned(self, at: float) -> None:
        """Assign the time since the previous backward to the parts."""
        synced = next(self._synced)
        if not self._ready:  # a backward through parameters of no recorded optimizer
            return
        self.other += self.after  # the previous micro-batch was not the last one
        forward = self._begun if self._forward is None else self._forward
        ready = max(self._ready.values())
        self.other += forward - self.last
        self.forwards.append(self._begun - forward)
        self.backwards.append(ready - self._begun)
        self.gaps = tuple(_gaps(self._begun, self._ready))
        waited = synced and self._world > 1
        self.after = at - max(ready, self._arrived) if self._arrived or not waited else 0.0
        self.last, self._forward = at, None


def _gaps(begun: float, ready: Mapping[int, float]) -> list[tuple[int, float]]:
    gaps = []
    for number, at in ready.items():
        gaps.append((number, at - begun))
        begun = at
    return gaps


OTHER_SHARE = 0.1
"""Share of an update outside of forward, backward and optimizer above which a note reports it."""
SPREAD_RATIO = 1.25
"""Ratio of the third quartile of updates to the first above which a note reports that they differ."""


def notes(model: Mapping[str, Any], updates: Sequence[UpdateTimes], order: Sequence[int]) -> Iterator[str]:
    """Yield the caveats of a forecast.

    Args:
        model: event ``model`` of the journal.
        updates: updates that count.
        order: numbers of the gradients, in order of readiness.
    """
    yield from _notes_on_updates(updates)
    yield from _notes_on_model(model, order)


def _notes_on_updates(updates: Sequence[UpdateTimes]) -> Iterator[str]:
    if len({tuple(number for number, _ in one.gaps) for one in updates}) > 1:
        yield "gradients do not become ready in the same order in every update; that of the last one counts"
    other = statistics.median(one.other / one.alone for one in updates)
    if other > OTHER_SHARE:
        yield f"{other:.0%} of an update is outside of forward, backward and optimizer (data?): no link changes it"
    times = sorted(one.alone for one in updates)
    short, long = times[len(times) // 4], times[3 * len(times) // 4]
    if len(times) >= 4 and long > SPREAD_RATIO * short:
        yield f"updates differ: half of them take {milliseconds(short)} to {milliseconds(long)}; medians are forecast"


def _notes_on_model(model: Mapping[str, Any], order: Sequence[int]) -> Iterator[str]:
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
