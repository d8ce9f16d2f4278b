"""Times of a script's updates, read from its journal, and the caveats of a forecast made from them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpbook.core import milliseconds


@dataclass(frozen=True)
class Timed:
    """An update of one rank, in seconds.

    Attributes:
        other: outside of what follows: data, logging, whatever comes between two micro-batches.
        forwards, backwards: of each micro-batch; a backward ends with its last gradient.
        gaps: of the last backward, for each gradient as it became ready: its number, and the time since the one before.
        after: from the last sum of gradients to the end of the update: what the wrapper and the optimizer do then.
        period: the whole update, with the waiting for sums, which is in none of the others.
        early: whether a backward before the last one was synced too.
        held: whether its sums came over an emulated link.
    """

    other: float
    forwards: tuple[float, ...]
    backwards: tuple[float, ...]
    gaps: tuple[tuple[int, float], ...]
    after: float
    period: float
    early: bool
    held: bool

    @property
    def alone(self) -> float:
        """What it would take without waiting."""
        return self.other + sum(self.forwards) + sum(self.backwards) + self.after


def timed(event: Mapping[str, Any], world: int) -> Timed | None:
    """The parts of an update on ``world`` ranks; None where no backward made a gradient."""
    parts = _Parts(event["marks"], event["synced"], world)
    if not parts.gaps:
        return None
    return Timed(
        parts.other, tuple(parts.forwards), tuple(parts.backwards), parts.gaps, parts.after, parts.last,
        any(event["synced"][:-1]), event["held"],
    )  # fmt: skip


class _Parts:
    """Goes through the marks (kind, seconds) once; ``last`` is the moment up to which everything has its place."""

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
                self._ready.pop(kind, None)  # one that is added to twice is ready when it is so for the last time
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
        """A backward is over: everything since the one before gets its place."""
        synced = next(self._synced)
        if not self._ready:  # of something that is not trained here
            return
        self.other += self.after  # what came after the micro-batch before was not its end
        forward = self._begun if self._forward is None else self._forward
        done = max(self._ready.values())
        self.other += forward - self.last
        self.forwards.append(self._begun - forward)
        self.backwards.append(done - self._begun)
        self.gaps = tuple(_gaps(self._begun, self._ready))
        waited = synced and self._world > 1
        self.after = at - max(done, self._arrived) if self._arrived or not waited else 0.0
        self.last, self._forward = at, None


def _gaps(begun: float, ready: Mapping[int, float]) -> list[tuple[int, float]]:
    gaps = []
    for number, at in ready.items():
        gaps.append((number, at - begun))
        begun = at
    return gaps


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
