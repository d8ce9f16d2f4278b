"""How much memory is alive at each moment of a step, and what it holds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, bytes_in_words

Content: TypeAlias = Literal["optimizer", "weights", "gathered", "gradients", "reduced", "buffers", "activations"]
"""What memory holds: the optimizer's state; the weights that a rank keeps; whole weights that were gathered; whole
gradients; the rank's own shard of reduced gradients; what collectives copy; activations."""
CONTENTS: tuple[Content, ...] = get_args(Content)
STATE: tuple[Content, ...] = ("optimizer", "weights", "gradients", "reduced")
"""The model's state: what the stages shard."""


class Held(NamedTuple):
    """Memory of ``nbytes`` that holds something of a unit, by its index, from ``start`` to ``end`` in seconds."""

    content: Content
    unit: int
    nbytes: int
    start: float
    end: float


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes on one rank over time. What is freed at a moment makes room for what is allocated at the same moment.

    Attributes:
        held: everything that is alive at some moment; what is there at the last one is still alive after it.
        end: the last moment, in seconds; the first is 0.
    """

    held: tuple[Held, ...]
    end: float
    times: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    """The moments at which something changes, ascending from 0 on, of shape (moments,)."""
    alive: dict[Content, NDArray[np.int64]] = field(init=False, repr=False, compare=False)
    """Bytes of each content from each of the moments to the next, each of shape (moments,)."""

    def __post_init__(self) -> None:
        changes = {0.0, *(h.start for h in self.held), *(h.end for h in self.held if h.end <= self.end)}
        times = np.array(sorted(changes))
        alive = {content: np.zeros(len(times) + 1, dtype=np.int64) for content in CONTENTS}
        for h in self.held:
            first, last = np.searchsorted(times, (h.start, h.end))
            alive[h.content][first] += h.nbytes
            alive[h.content][last] -= h.nbytes
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "alive", {content: np.cumsum(a[:-1]) for content, a in alive.items()})

    @cached_property
    def total(self) -> NDArray[np.int64]:
        """Bytes of all contents from each of the moments to the next."""
        return self.of(CONTENTS)

    @property
    def peak(self) -> int:
        """The most bytes at one moment."""
        return int(self.total.max())

    @property
    def peak_time(self) -> float:
        """When the peak is first reached, in seconds."""
        return float(self.times[self.total.argmax()])

    def of(self, contents: Iterable[Content]) -> NDArray[np.int64]:
        """Bytes of these contents together, from each of the moments to the next."""
        found: NDArray[np.int64] = np.sum([self.alive[content] for content in contents], axis=0)
        return found

    def at(self, time: float) -> dict[Content, int]:
        """Bytes by content at a moment from 0 on, in seconds. Raises `InvalidArgument` for one before."""
        if not time >= 0:
            raise InvalidArgument("time", time, "a moment of the step, 0 or later")
        place = int(np.searchsorted(self.times, time, side="right")) - 1
        return {content: int(values[place]) for content, values in self.alive.items()}

    def __repr__(self) -> str:
        at = ", ".join(f"{content} {bytes_in_words(n)}" for content, n in self.at(self.peak_time).items() if n)
        return f"MemoryCurve: peak {bytes_in_words(self.peak)} ({at})"
