"""Updates from averaged gradients that are some steps old."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dpbook.core import check_int
from dpbook.replicas.array import Array
from dpbook.replicas.loop import update
from dpbook.replicas.method import Cluster, Method, Step


@dataclass(frozen=True, repr=False)
class Stale(Method):
    """The four-phase loop, but each step applies the averaged gradient at the parameters of ``delay`` steps before.

    Before there were any, at those of the start. That is what a loop does that lets the next ``delay`` steps begin
    before an all-reduce is over: it sends what the exact loop sends, and nobody waits. `largest_stable_rate` tells
    what it costs. A run's gap is then how far the old gradients are from those of the batch at the present parameters.
    """

    delay: int

    def __post_init__(self) -> None:
        check_int("delay", self.delay, 0)

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        seen = deque([params], maxlen=self.delay + 1)
        while True:
            averaged = cluster.average(cluster.gradients(seen[0]))
            params = update(params, averaged, cluster.optimizers)
            seen.append(params)
            yield Step(params, averaged)
