"""Training methods: what replicas send each other in a step, and the update that follows.

A `Method` is a training loop, written as a generator. It calls a `RankGroup` for the ranks' gradients and for all
communication, and yields every replica's parameters after each step. `Exact` is the four-phase loop; the methods of
`dpbook.replicas.inexact` send less, less often or later. The group counts everything that is sent.
"""

import math
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
from dpbook.replicas.four_phases import AllReduce, average, update
from dpbook.replicas.networks import Array
from dpbook.replicas.optimizers import Optimizer


class Step(NamedTuple):
    """Result of one training step; both arrays are (world, size), and ``params`` are never changed later.

    ``averaged`` is the gradient that each replica used as that of the whole batch, None if no gradients are averaged.
    """

    params: Array
    averaged: Array | None = None


class RankGroup:
    """The ranks of a run, as a `Method` uses them: gradients, optimizers, and communication that is counted.

    Attributes:
        world: number of ranks.
        optimizers: one per rank, with the step's learning rate.
        all_reduce: the sum of `average`, a schedule or a function; bytes sent by a function cannot be counted and are
            NaN.
        shapes: shapes of all tensors of the model by name, in the order of a row of parameters; empty if the model has
            no such attribute.
        sent: (world,), bytes that each rank has sent since the run began, as floats.
        rounds: number of consecutive rounds of messages; NaN if they cannot be counted.
        weights: (world,), weight of each rank's part of the step's batch; all 1 if the parts are equal.
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
        self._counted: dict[tuple[collectives.Schedule, int, int, int, int | None], collectives.Traffic] = {}

    def read(self, gradients: Callable[[Array, Sequence[int]], Array], weights: Array) -> None:
        """Begin a step; ``gradients(params, parts)`` returns those of parts of its batch, one per row of ``params``."""
        self._gradients, self.weights = gradients, weights

    def gradients(self, params: Array, parts: Sequence[int] | None = None) -> Array:
        """Return each rank's gradient (world, size) of its part of the step's batch, at its row of ``params``.

        With ``parts``, numbers from 0 to world − 1, return the gradients of these parts, one for each row of
        ``params``. Unequal parts are weighted already: the mean over all parts is the gradient of the batch.
        """
        assert self._gradients is not None, "read() begins a step"
        return self._gradients(params, range(self.world) if parts is None else parts)

    def average(self, rows: Array) -> Array:
        """Average ``rows`` (world, size) by messages; row r is computed from the messages that rank r received."""
        averaged = average(rows, self.all_reduce)
        if isinstance(self.all_reduce, collectives.Schedule):
            self.count(self.all_reduce, rows.shape[1], rows.itemsize)
        else:
            self.sent, self.rounds = self.sent + np.nan, np.nan
        return averaged

    def run_schedule(self, schedule: collectives.Schedule, rows: Array) -> Array:
        """Run ``schedule`` on ``rows`` (world, size); row r of the result is the buffer of rank r afterwards."""
        self.count(schedule, rows.shape[1], rows.itemsize)
        return np.asarray(collectives.simulate(schedule, rows).buffers)

    def all_gather(self, payloads: Sequence[bytes]) -> list[list[bytes]]:
        """Send each rank's payload, of any length, round a ring; item [r][s] is the payload of rank s on rank r."""
        return self._carry(gathering(tuple(map(len, payloads))), payloads, owned=1)

    def all_to_all(self, payloads: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
        """Send payload [r][s], of any length, from rank r to rank s; item [s][r] of the result is what s received."""
        flat = [payload for row in payloads for payload in row]
        chunks = self._carry(exchanging(tuple(map(len, flat))), flat, owned=self.world)
        return [received[rank :: self.world] for rank, received in enumerate(chunks)]

    def _carry(self, schedule: collectives.Schedule, payloads: Sequence[bytes], owned: int) -> list[list[bytes]]:
        """Send payloads as chunks, of which each rank begins with ``owned``; return all chunks on each rank."""
        size = sum(map(len, payloads))
        parts = list(pairwise(schedule.bounds(size, 1).tolist()))
        rows = np.zeros((self.world, size), np.uint8)
        for chunk, (payload, (a, b)) in enumerate(zip(payloads, parts, strict=True)):
            rows[chunk // owned, a:b] = np.frombuffer(payload, np.uint8)
        return [[row[a:b].tobytes() for a, b in parts] for row in self.run_schedule(schedule, rows)]

    def count(
        self, schedule: collectives.Schedule, size: int, itemsize: int, header: int = 0, block: int | None = None
    ) -> None:
        """Add the bytes and rounds of ``schedule`` for buffers of ``size`` elements of ``itemsize`` bytes.

        ``header`` is the number of further bytes in every message, or with ``block`` in every block of so many
        elements.
        """
        key = schedule, size, itemsize, header, block
        if key not in self._counted:
            self._counted[key] = collectives.count(*key)
        self.sent = self.sent + self._counted[key].sent_bytes
        self.rounds += self._counted[key].rounds


@lru_cache(128)
def gathering(lengths: tuple[int, ...]) -> collectives.Schedule:
    """Return a ring all-gather in which rank r begins with chunk r, of ``lengths[r]`` elements."""
    world, bounds = len(lengths), collectives.FixedBounds(tuple(accumulate(lengths, initial=0)))
    renumbered = [(chunk - 1) % world for chunk in range(world)]  # the ring's chunk c begins on rank c − 1
    return collectives.embed(collectives.all_gather(world), world, range(world), world, renumbered, bounds=bounds)


@lru_cache(128)
def exchanging(lengths: tuple[int, ...]) -> collectives.Schedule:
    """Return an all-to-all: rank r begins with the chunks r · N + s, of ``lengths``, and sends that chunk to rank s."""
    world = math.isqrt(len(lengths))
    ranks = np.arange(world)
    places = [(source, dest) for source in range(world) for dest in range(world)]

    def send(s: int) -> collectives.Round:
        dest = (ranks + s + 1) % world
        return collectives.Round(ranks, dest, ranks * world + dest, reduce=False)

    return collectives.Schedule(
        world,
        world * world,
        collectives.LazyRounds(world - 1, send),
        collectives.FixedBounds(tuple(accumulate(lengths, initial=0))),
        before=tuple(collectives.complete_on([source], world) for source, _ in places),
        after=tuple(collectives.complete_on(sorted({source, dest}), world) for source, dest in places),
        name=f"all_to_all(world={world})",
    )


class Method(ABC):
    """A method of training replicas together. It contains only settings, so one object serves any number of runs."""

    @abstractmethod
    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        """Yield steps without end, starting at ``params`` (world, size); `RankGroup.read` is called before each."""

    def __repr__(self) -> str:
        """Return the call that makes a dataclass with ``repr=False``, without settings that have their default."""
        settings: tuple[Field[object], ...] = fields(self) if is_dataclass(self) else ()
        ordered = sorted(settings, key=lambda setting: setting.kw_only is True)
        values = [(setting, getattr(self, setting.name)) for setting in ordered]
        chosen = [f"{setting.name}={value!r}" for setting, value in values if value != setting.default]
        return f"{type(self).__name__}({', '.join(chosen)})"


def next_step(training: Iterator[Step], params: Array, method: Method) -> Step:
    """Return the next step of ``training``, a run of ``method``.

    Raises `InvalidArgument` if there is none, or its parameters differ from ``params`` in shape or dtype.
    """
    step = next(training, None)
    after = step.params if isinstance(step, Step) else None
    if step is None or not isinstance(after, np.ndarray) or (after.shape, after.dtype) != (params.shape, params.dtype):
        expected = f"one that yields without end Steps whose params are {params.dtype} of shape {params.shape}"
        raise InvalidArgument("method", method, expected)
    return step


class Exact(Method):
    """The four-phase loop: every step averages all gradients, and every replica updates from that average."""

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        while True:
            averaged = group.average(group.gradients(params))
            params = update(params, averaged, group.optimizers)
            yield Step(params, averaged)


EXACT = Exact()
