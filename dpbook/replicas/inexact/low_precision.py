"""Gradients in fewer bits: every message of the average is rounded to a narrower format."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpbook.collectives import Schedule
from dpbook.core import check_int, check_type
from dpbook.replicas.array import Array
from dpbook.replicas.inexact.collective import all_gather, all_reduce
from dpbook.replicas.inexact.precision import Format, format_of
from dpbook.replicas.loop import check_all_reduce, update
from dpbook.replicas.method import Cluster, Method, Step, gathering


@dataclass(frozen=True, repr=False)
class LowPrecision(Method):
    """The exact loop with an all-reduce whose messages are in the format ``wire``.

    Every sum that is sent on is rounded again, so the run's schedule decides how many roundings a sum goes through.

    Attributes:
        wire: the format of a message, a name from `FORMATS` or a `Format`.
        accumulate: the format in which a rank adds; None adds in that of the wire.
        gather: whether ranks send their own gradients alone, by a ring all-gather, and each adds up all of them
            itself: every number is rounded once, and N/2 times as many bytes are sent as by a ring.
        stochastic: whether what is sent is rounded up or down at random, without bias. Ranks draw for themselves, so
            replicas stay equal under schedules that compute every sum on one rank; `recursive_doubling` does not.
        seed: of that.
    """

    wire: str | Format
    accumulate: str | Format | None = "fp32"
    gather: bool = False
    stochastic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        format_of("wire", self.wire)
        self._sums_in()
        check_type("gather", self.gather, bool, "True or False")
        check_type("stochastic", self.stochastic, bool, "True or False")
        check_int("seed", self.seed, 0)

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        wire, rng = format_of("wire", self.wire), np.random.default_rng(self.seed) if self.stochastic else None
        schedule = check_type("all_reduce", cluster.all_reduce, Schedule, "a Schedule, to round each of its messages")
        check_all_reduce(schedule, cluster.world)
        size = params.shape[1]
        while True:
            gradients = cluster.gradients(params)
            if self.gather:
                sums = self._sum(all_gather(gradients, wire, rng))
                cluster.count(gathering((size,) * cluster.world), size * cluster.world, wire.nbytes, wire.header)
            else:
                sums = all_reduce(schedule, gradients, wire, self._sums_in(), rng)
                cluster.count(schedule, size, wire.nbytes, wire.header)
            averaged = (sums / cluster.world).astype(params.dtype)
            params = update(params, averaged, cluster.optimizers)
            yield Step(params, averaged)

    def _sums_in(self) -> Format:
        return format_of("accumulate", self.wire if self.accumulate is None else self.accumulate)

    def _sum(self, received: Array) -> Array:
        """Add (world, world, size) over its second axis, in rank order."""
        total: Array = received[:, 0]
        for rank in range(1, len(received)):
            total = self._sums_in().round(total + received[:, rank])
        return total
