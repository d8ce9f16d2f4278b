"""How replicas that train together keep together: what they send in a step, and what becomes of it.

A `Method` is a loop of its own, written as a generator: it asks a `Cluster` for the ranks' gradients and for what the
ranks send each other, and yields every replica's parameters after each step. `Exact` is the four-phase loop; the
methods of `dpbook.replicas.inexact` send less, less often or later. Whatever is sent goes through the cluster, which
counts it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from dpbook import collectives
from dpbook.core import InvalidArgument
from dpbook.replicas.array import Array
from dpbook.replicas.loop import AllReduce, average, update
from dpbook.replicas.optim import Optimizer


class Step(NamedTuple):
    """What a step left.

    Attributes:
        params: (world, size), one row per replica; never changed later.
        averaged: (world, size), the gradient that each replica took for that of the whole batch, or None where a
            method averages no gradients.
    """

    params: Array
    averaged: Array | None = None


class Cluster:
    """The ranks as a `Method` sees them: their gradients, their optimizers, and a wire that counts.

    Attributes:
        world: number of ranks.
        optimizers: one per rank, with the step's learning rate.
        all_reduce: how `average` sums, a schedule or a function; what a function sends cannot be counted and is NaN.
        shapes: the shape of every tensor of the model by its name, in the order in which they lie in a row of
            parameters; empty if the model does not say.
        sent: (world,), bytes that each rank has sent since the run began, as floats.
        rounds: how many rounds of messages there were, one after another; NaN where they cannot be counted.
        weights: (world,), what each rank's part of the step's batch weighs; all 1 where the parts are equal.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        all_reduce: AllReduce,
        shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        self.world, self.optimizers, self.all_reduce, self.shapes = len(optimizers), optimizers, all_reduce, shapes
        self.sent, self.rounds = np.zeros(len(optimizers)), 0.0
        self.weights = np.ones(self.world)
        self._gradients: Callable[[Array, Sequence[int]], Array] | None = None
        self._counted: dict[tuple[collectives.Schedule, int, int, int], collectives.Traffic] = {}

    def read(self, gradients: Callable[[Array, Sequence[int]], Array], weights: Array) -> None:
        """Begin a step: ``gradients(params, parts)`` are those of some parts of its batch, a row of ``params`` each."""
        self._gradients, self.weights = gradients, weights

    def gradients(self, params: Array, parts: Sequence[int] | None = None) -> Array:
        """Each rank's gradient (world, size) of its own part of the step's batch, at its own row of ``params``.

        With ``parts``, numbers from 0 to world − 1, those of the parts named, one for each row of ``params``. Unequal
        parts have been weighted: the mean over all parts is the gradient of the batch.
        """
        assert self._gradients is not None, "a step has to be read first"
        return self._gradients(params, range(self.world) if parts is None else parts)

    def average(self, rows: Array) -> Array:
        """Average ``rows`` (world, size) by messages; row r is computed from what rank r received."""
        averaged = average(rows, self.all_reduce)
        if isinstance(self.all_reduce, collectives.Schedule):
            self.count(self.all_reduce, rows.shape[1], rows.itemsize)
        else:
            self.sent, self.rounds = self.sent + np.nan, np.nan
        return averaged

    def carry_out(self, schedule: collectives.Schedule, rows: Array) -> Array:
        """Send what ``schedule`` says of ``rows`` (world, size); row r of the result is what rank r holds then."""
        self.count(schedule, rows.shape[1], rows.itemsize)
        return np.asarray(collectives.simulate(schedule, rows).buffers)

    def all_gather(self, payloads: Sequence[bytes]) -> list[list[bytes]]:
        """Send each rank's payload, of any length, round a ring; item [r][s] is what rank r has of rank s."""
        schedule, size = gathering(tuple(map(len, payloads))), sum(map(len, payloads))
        parts = list(pairwise(schedule.bounds(size, 1).tolist()))
        rows = np.zeros((self.world, size), np.uint8)
        for row, payload, (a, b) in zip(rows, payloads, parts, strict=True):
            row[a:b] = np.frombuffer(payload, np.uint8)
        return [[row[a:b].tobytes() for a, b in parts] for row in self.carry_out(schedule, rows)]

    def count(self, schedule: collectives.Schedule, size: int, itemsize: int, header: int = 0) -> None:
        """Add what ``schedule`` sends for buffers of ``size`` elements of ``itemsize`` bytes.

        ``header`` is what every message has beside its elements, in bytes.
        """
        what = schedule, size, itemsize, header
        if what not in self._counted:
            self._counted[what] = collectives.count(*what)
        self.sent = self.sent + self._counted[what].sent_bytes
        self.rounds += self._counted[what].rounds


@lru_cache(128)
def gathering(lengths: tuple[int, ...]) -> collectives.Schedule:
    """A ring all-gather in which rank r begins with chunk r, of ``lengths[r]`` elements."""
    world, bounds = len(lengths), collectives.FixedBounds(tuple(accumulate(lengths, initial=0)))
    own = [(chunk - 1) % world for chunk in range(world)]  # of the ring's chunk c, which begins on rank c − 1
    return collectives.embed(collectives.all_gather(world), world, range(world), world, own, bounds=bounds)


class Method(ABC):
    """A way of training replicas together. It holds settings alone, so one object serves any number of runs."""

    @abstractmethod
    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        """Train from ``params`` (world, size) on, without end: one item per step, asked for when it has been read."""

    def __repr__(self) -> str:
        """As it was called, if it is a dataclass with ``repr=False``: settings that have their default are left out."""
        settings: tuple[Field[object], ...] = fields(self) if is_dataclass(self) else ()
        ordered = sorted(settings, key=lambda setting: setting.kw_only is True)
        values = [(setting, getattr(self, setting.name)) for setting in ordered]
        chosen = [f"{setting.name}={value!r}" for setting, value in values if value != setting.default]
        return f"{type(self).__name__}({', '.join(chosen)})"


def next_step(training: Iterator[Step], params: Array, method: Method) -> Step:
    """The next step of ``training``, a run of ``method`` that left ``params``; the method may be a reader's own."""
    step = next(training, None)
    left = step.params if isinstance(step, Step) else None
    if step is None or not isinstance(left, np.ndarray) or (left.shape, left.dtype) != (params.shape, params.dtype):
        expected = f"one that yields without end Steps whose params are {params.dtype} of shape {params.shape}"
        raise InvalidArgument("method", method, expected)
    return step


class Exact(Method):
    """The four-phase loop: every step averages all gradients, and every replica updates from that average."""

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        while True:
            averaged = cluster.average(cluster.gradients(params))
            params = update(params, averaged, cluster.optimizers)
            yield Step(params, averaged)


EXACT = Exact()
