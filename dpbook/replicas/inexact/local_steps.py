"""Local steps: replicas train alone for some steps and then average (local SGD), or take an outer step (DiLoCo)."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import count, islice, pairwise

import numpy as np

from dpbook.collectives import chunk_bounds
from dpbook.core import check_float, check_int
from dpbook.replicas.arrays import Array
from dpbook.replicas.four_phases import update
from dpbook.replicas.method import EXACT, Method, RankGroup, Step


@dataclass(frozen=True, repr=False)
class LocalSGD(Method):
    """Local SGD: every replica steps from its own gradient, and averages its parameters after every ``period`` steps.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017 (there called
    federated averaging); Stich, Local SGD Converges Fast and Communicates Little, 2019. With ``exact_steps`` the run
    begins with the four-phase loop: post-local SGD (Lin, Stich, Patel and Jaggi, Don't Use Large Mini-Batches, Use
    Local SGD, 2020).

    A period of 1 gives the exact loop's parameters, within rounding, for optimizers that are linear in the gradients:
    SGD and momentum, not Adam. The state of an optimizer stays on its rank. A rank with a larger part of the batch
    takes longer steps, by its weight, so that a period of 1 is exact then too. Between two averages the replicas
    differ; after a whole number of periods they are equal.
    """

    period: int
    exact_steps: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_int("period", self.period, 1)
        check_int("exact_steps", self.exact_steps, 0)

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        for exact in islice(EXACT.steps(params, group), self.exact_steps):
            params = exact.params
            yield exact
        for step in count(1):
            params = update(params, group.gradients(params), group.optimizers)
            if step % self.period == 0:
                params = group.average(params)
            yield Step(params)


@dataclass(frozen=True, repr=False)
class DiLoCo(Method):
    """DiLoCo: replicas step alone with the run's optimizer, and take one outer step together every ``period`` steps.

    The outer gradient Δ is the mean over the ranks of (outer parameters − local parameters). The outer step is
    Nesterov's, as in torch's ``SGD(nesterov=True)``, with v = 0 at the start:

        v ← outer_momentum · v + Δ;   outer ← outer − outer_lr · (Δ + outer_momentum · v);   local ← outer

    Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023, who use 0.7 and 0.9. With
    outer_lr 1 and outer_momentum 0 this is local SGD. The state of the inner optimizers stays on their ranks.

    Streamed (Douillard et al., Streaming DiLoCo with Overlapping Communication, 2025): the parameters are cut evenly
    into ``fragments``, whose outer steps are spread evenly over the period: fragment p of F takes its step when
    (p + 1) · period // F steps of a period are over. Such a step sends an F-th of the bytes. With a ``delay`` the outer
    step of a fragment arrives that many steps after it was sent, and mixes with the local steps since then:
    local ← mixing · local + (1 − mixing) · outer. In the paper a fragment is a group of layers, and outer gradients
    have 4 bits.

    Attributes:
        period: steps from one outer step of a fragment to the next.
        fragments: number of fragments, at most ``period``.
        delay: steps that messages take, below ``period``; their bytes are counted when they are sent.
        mixing: weight of the local parameters, from 0 to below 1.
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

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        cuts = [slice(*ends) for ends in pairwise(chunk_bounds(params.shape[1], self.fragments))]
        outer, velocity = params.copy(), np.zeros_like(params)
        for step in count(1):
            params = update(params, group.gradients(params), group.optimizers)
            for cut in self._due(step, cuts):
                moved = group.average(outer[:, cut] - params[:, cut])
                velocity[:, cut] = self.outer_momentum * velocity[:, cut] + moved
                outer[:, cut] -= self.outer_lr * (moved + self.outer_momentum * velocity[:, cut])
            for cut in self._due(step - self.delay, cuts):
                params[:, cut] = self.mixing * params[:, cut] + (1 - self.mixing) * outer[:, cut]
            yield Step(params)

    def _due(self, step: int, cuts: list[slice]) -> list[slice]:
        """Return the fragments whose outer step is in ``step``, counted from 1; none before step 1."""
        ends = [(index + 1) * self.period // self.fragments for index in range(self.fragments)]
        return [cut for cut, end in zip(cuts, ends, strict=True) if step > 0 and (step - end) % self.period == 0]
