"""Local SGD: replicas train alone for a while, then average their parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from dpbook.core import check_int
from dpbook.replicas.array import Array
from dpbook.replicas.loop import update
from dpbook.replicas.method import EXACT, Cluster, Method, Step


@dataclass(frozen=True, repr=False)
class LocalSGD(Method):
    """Every replica steps from its own gradient; the parameters are averaged after every ``period`` such steps.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017 (there called
    federated averaging); Stich, Local SGD Converges Fast and Communicates Little, 2019. With ``exact_steps`` the run
    begins with the four-phase loop: post-local SGD (Lin, Stich, Patel and Jaggi, Don't Use Large Mini-Batches, Use
    Local SGD, 2020).

    A period of 1 gives the exact loop's parameters, within rounding, for optimizers that are linear in the gradients:
    SGD and momentum, not Adam. What an optimizer remembers stays on its rank. A rank with a larger part of the batch
    takes longer steps, by its weight, so that a period of 1 is exact then too. Between two averages the replicas
    differ: a run of a whole number of periods ends with them equal.
    """

    period: int
    exact_steps: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_int("period", self.period, 1)
        check_int("exact_steps", self.exact_steps, 0)

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        for exact in islice(EXACT.steps(params, cluster), self.exact_steps):
            params = exact.params
            yield exact
        for step in count(1):
            params = update(params, cluster.gradients(params), cluster.optimizers)
            if step % self.period == 0:
                params = cluster.average(params)
            yield Step(params)
