"""The bucket cap that makes the step shortest, by trying those that make a difference."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_int, milliseconds, plural
from dpbook.overlap.buckets.layout import Plan
from dpbook.overlap.buckets.plans import plan
from dpbook.overlap.buckets.tensors import Tensor
from dpbook.overlap.step.layers import Layer, tensors_of
from dpbook.overlap.step.simulation import Price, simulate_step

ALL = 256
"""Up to so many distinct plans, every one is tried."""
GRID = 32
"""Otherwise so many caps, evenly spaced in their logarithm, and so many again around the best."""


@dataclass(frozen=True, eq=False)
class CapSweep:
    """Steps at several caps; all arrays of shape (n,), sorted by cap.

    Attributes:
        caps: bytes, int64.
        calls: collectives per sync, int64.
        durations: the step time, in seconds.
        exposed: exposed communication, in seconds.
    """

    caps: NDArray[np.int64]
    calls: NDArray[np.int64]
    durations: NDArray[np.float64]
    exposed: NDArray[np.float64]

    @property
    def best(self) -> int:
        """The cap of the shortest step, in bytes; of several the smallest."""
        return int(self.caps[np.argmin(self.durations)])

    @property
    def duration(self) -> float:
        """The shortest step time, in seconds."""
        return float(self.durations.min())

    def __repr__(self) -> str:
        k = int(np.argmin(self.durations))
        return (
            f"best of {plural(len(self.caps), 'cap')}: {self.best:,} bytes, {plural(int(self.calls[k]), 'bucket')}, "
            f"{milliseconds(self.duration)}, exposed {milliseconds(float(self.exposed[k]))}"
        )


def best_cap(
    layers: Sequence[Layer], price: Price, caps: Sequence[int] | None = None, first: int | None = None, **step: Any
) -> CapSweep:
    """Simulate the step at several caps; `CapSweep.best` is the one to take.

    A plan changes only at those caps that are the bytes of some neighbouring tensors. Where these are few, all are
    tried, which finds the optimum; otherwise a grid between the smallest and all bytes, then a finer one around its
    best, which finds a good one.

    Args:
        layers, price: as for `simulate_step`.
        caps: bytes; those to try instead.
        first: cap of the first bucket; None for the same.
        step: `simulate_step`'s other arguments.
    """
    tensors = tensors_of(layers)
    tried: dict[int, tuple[int, float, float]] = {}
    seen: dict[Plan, tuple[int, float, float]] = {}

    def attempt(candidates: Sequence[int]) -> None:
        for cap in candidates:
            buckets = plan(tensors, cap, first)
            if buckets not in seen:
                timeline = simulate_step(layers, buckets, price, **step)
                seen[buckets] = buckets.calls, timeline.duration, timeline.exposed()
            tried[cap] = seen[buckets]

    if caps is not None:
        if not len(caps):
            raise InvalidArgument("caps", caps, "one or more")
        attempt([check_int(f"caps[{k}]", cap, 0) for k, cap in enumerate(caps)])
    elif (every := distinct_caps(tensors, ALL)) is not None:
        attempt(every)
    else:
        attempt(_grid(max(1, min(t.nbytes for t in tensors)), sum(t.nbytes for t in tensors)))
        ordered = sorted(tried)
        k = min(range(len(ordered)), key=lambda k: tried[ordered[k]][1])
        attempt(_grid(ordered[max(k - 1, 0)], ordered[min(k + 1, len(ordered) - 1)]))
    ordered = sorted(tried)
    calls, durations, exposed = zip(*(tried[cap] for cap in ordered), strict=True)
    return CapSweep(np.array(ordered), np.array(calls), np.array(durations), np.array(exposed))


def distinct_caps(tensors: Sequence[Tensor], limit: int) -> list[int] | None:
    """Return all caps at which the plan of ``tensors`` may change: the bytes of neighbours; None if over ``limit``."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.nbytes)
    sums: set[int] = set()
    for sizes in kinds.values():
        for k in range(len(sizes)):
            sums.update(accumulate(sizes[k:]))
            if len(sums) > limit:
                return None
    return sorted(sums)


def _grid(low: int, high: int) -> list[int]:
    return sorted({round(cap) for cap in np.geomspace(low, high, GRID).tolist()})
