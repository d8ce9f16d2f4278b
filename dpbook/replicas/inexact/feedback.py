"""Error feedback: what a step did not send is added to the gradient of the next.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
DNNs" (2014); why it converges: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (2018), and Karimireddy et
al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019). One implementation for all
compressors: they differ in how they `exchange`.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

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


class Compressed(Method):
    """The exact loop with an exchange that loses something in place of the average."""

    feedback: bool

    @abstractmethod
    def exchange(self, cluster: Cluster) -> Exchange:
        """Begin a run: return what exchanges its vectors, step after step."""

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        exchange, residual = self.exchange(cluster), np.zeros_like(params)
        while True:
            wanted = cluster.gradients(params) + residual
            averaged, parts = exchange(wanted, cluster)
            if self.feedback:
                residual = wanted - parts
            params = update(params, averaged, cluster.optimizers)
            yield Step(params, averaged)
