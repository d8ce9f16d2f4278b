"""DiLoCo: local steps, whose sum is the gradient of an outer optimizer; whole, or fragment by fragment."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import count, pairwise

import numpy as np

from dpbook.collectives import chunk_bounds
from dpbook.core import check_float, check_int
from dpbook.replicas.array import Array
from dpbook.replicas.loop import update
from dpbook.replicas.method import Cluster, Method, Step


@dataclass(frozen=True, repr=False)
class DiLoCo(Method):
    """Replicas step alone with the run's optimizer, and every ``period`` steps take one outer step together.

    The outer gradient is Δ = the mean over the ranks of (outer parameters − local parameters), and the step on it is
    Nesterov's as torch's ``SGD(nesterov=True)`` does it, with v = 0 at the start:

        v ← outer_momentum · v + Δ;   outer ← outer − outer_lr · (Δ + outer_momentum · v);   local ← outer

    Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023, who use 0.7 and 0.9. With
    outer_lr 1 and outer_momentum 0 this is local SGD. What the inner optimizers remember stays on their ranks.

    Streamed (Douillard et al., Streaming DiLoCo with Overlapping Communication, 2025): the parameters are cut evenly
    into ``fragments``, and each takes its outer step at a step of its own, spread evenly over the period; fragment p of
    F when (p + 1) · period // F steps of a period are over. A step then sends an F-th as much. With a ``delay`` a
    fragment's outer step arrives that many steps after it was sent, and the local steps since then are
    kept in part: local ← mixing · local + (1 − mixing) · outer. In the paper a fragment is a group of layers,
    and outer gradients travel in 4 bits.

    Attributes:
        period: steps from one outer step of a fragment to its next.
        fragments: at most ``period``.
        delay: steps that messages take, below ``period``; what is sent is counted at once.
        mixing: share of the local parameters that is kept, from 0 to below 1.
    """

    period: int
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    _: KW_ONLY
    fragments: int = 1
    delay: int = 0
    mixing: float = 0.0

    def __post_init__(self) -> None:
        check_int("period", self.period, 1)
        check_float("outer_lr", self.outer_lr, above=0)
        check_float("outer_momentum", self.outer_momentum, minimum=0, below=1)
        check_int("fragments", self.fragments, 1, self.period)
        check_int("delay", self.delay, 0, self.period - 1)
        check_float("mixing", self.mixing, minimum=0, below=1)

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        cuts = [slice(*ends) for ends in pairwise(chunk_bounds(params.shape[1], self.fragments))]
        outer, velocity = params.copy(), np.zeros_like(params)
        for step in count(1):
            params = update(params, cluster.gradients(params), cluster.optimizers)
            for cut in self._due(step, cuts):
                moved = cluster.average(outer[:, cut] - params[:, cut])
                velocity[:, cut] = self.outer_momentum * velocity[:, cut] + moved
                outer[:, cut] -= self.outer_lr * (moved + self.outer_momentum * velocity[:, cut])
            for cut in self._due(step - self.delay, cuts):
                params[:, cut] = self.mixing * params[:, cut] + (1 - self.mixing) * outer[:, cut]
            yield Step(params)

    def _due(self, step: int, cuts: list[slice]) -> list[slice]:
        """The fragments whose outer step belongs to a step, counted from 1; before that none."""
        ends = [(index + 1) * self.period // self.fragments for index in range(self.fragments)]
        return [cut for cut, end in zip(cuts, ends, strict=True) if step > 0 and (step - end) % self.period == 0]
