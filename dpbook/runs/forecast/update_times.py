"""The moments of one update, as `recording` writes them, made into the times of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
