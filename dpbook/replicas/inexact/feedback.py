"""Error feedback: what a step did not send is added to the gradient of the next.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
DNNs" (2014); why it converges: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (2018), and Karimireddy et
al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019). One implementation for all
compressors: they differ in how they `exchange`. The last two compress the gradient times the learning rate, and so what
is left keeps the rate of its own step; here, as in PowerSGD, it waits as a gradient and is applied at the rate of the
step that sends it. Where the rate does not change that is the same.

What is added late has missed the momentum of the steps between. Lin et al., "Deep Gradient Compression" (2018), section
3.2, therefore compress every rank's own velocity in place of its gradient (momentum correction).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from dpbook.core import check_float, check_type
from dpbook.replicas.array import Array
from dpbook.replicas.loop import update
from dpbook.replicas.method import Cluster, Method, Step


class Exchanged(NamedTuple):
    """What came of an exchange, both (world, size).

    Attributes:
        averaged: row r is the average of the ranks' parts, as rank r computes it from what it received.
        parts: row r is the part that rank r has in that average: what is left of its vector once compressed.
    """

    averaged: Array
    parts: Array


Exchange: TypeAlias = Callable[[Array, Cluster], Exchanged]
"""Compress, send and average one vector per rank, (world, size). It may remember what it needs for the next step."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Compressed(Method):
    """The exact loop with an exchange that loses something in place of the average.

    Attributes:
        feedback: whether what a rank did not send is added to what it sends next.
        momentum: of every rank's velocity, v ← momentum · v + g, which is compressed in place of its gradient g. With
            `SGD`, and where nothing is lost, that is the optimizer `Momentum`, whose velocity is one of averages.
    """

    feedback: bool = True
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_type("feedback", self.feedback, bool, "True or False")
        object.__setattr__(self, "momentum", check_float("momentum", self.momentum, minimum=0, below=1))

    @abstractmethod
    def exchange(self, cluster: Cluster) -> Exchange:
        """Begin a run: return what exchanges its vectors, step after step."""

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        exchange, velocity, residual = self.exchange(cluster), np.zeros_like(params), np.zeros_like(params)
        while True:
            velocity = self.momentum * velocity + cluster.gradients(params)
            wanted = velocity + residual
            averaged, parts = exchange(wanted, cluster)
            if self.feedback:
                residual = wanted - parts
            params = update(params, averaged, cluster.optimizers)
            yield Step(params, averaged)
