"""How a step is sharded, and what its collectives cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpbook.collectives import Link, closed_forms
from dpbook.core import InvalidArgument, check_int

Price = Callable[[float], float]
"""Seconds of a collective by the bytes of its whole buffer, such as `dpbook.collectives.AlphaBeta`."""


@dataclass(frozen=True)
class Sharding:
    """What is sharded, over whom, and when.

    Attributes:
        stage: 0 nothing (plain data parallelism), 1 what the optimizer keeps, 2 gradients too, 3 weights too.
        shards: ranks over which they are sharded; the world, unless there are ``replicas``.
        replicas: groups of ``shards`` ranks, which hold the same shards (hybrid sharding). Whenever gradients are
            reduced the shards are summed across, as FSDP of torch 2.13 does it.
        prefetch: units whose weights are gathered ahead of the one that computes; with 0 each is waited for.
        reshard: whether stage 3 frees gathered weights after forward. If not, backward gathers none, and in one
            micro-batch it sends what stage 2 sends; what is kept between steps is stage 3's, shards alone.
        recompute: whether forward keeps the inputs of the units alone, and backward computes each forward again
            (activation checkpointing of every unit).
        behind_forward: whether stages 1 and 2 gather the new weights unit by unit behind the next forward (the step
            shown is one of many, and begins with the gathers of the update before it), or all after the update.
        copied: whether a collective works on a copy of its buffer while it runs, as gloo's halves of an all-reduce do.
    """

    stage: int
    shards: int
    replicas: int = 1
    prefetch: int = 1
    reshard: bool = True
    recompute: bool = False
    behind_forward: bool = False
    copied: bool = False

    def __post_init__(self) -> None:
        check_int("stage", self.stage, 0, 3)
        check_int("shards", self.shards, 1)
        check_int("prefetch", self.prefetch, 0)
        if check_int("replicas", self.replicas, 1) > 1 and not self.stage:
            raise InvalidArgument("replicas", self.replicas, "1 in stage 0, where every rank is one")

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.shards * self.replicas

    def share(self, elements: int) -> int:
        """Elements of the largest shard of so many."""
        return -(-elements // self.shards)

    @property
    def frees(self) -> bool:
        """Whether gathered weights are freed after forward."""
        return self.stage == 3 and self.reshard


@dataclass(frozen=True)
class Wires:
    """What each collective costs: seconds by the bytes of its whole buffer, a unit's weights or gradients.

    ``across``: the all-reduce of a shard between replicas, by the bytes of the shard.
    """

    all_gather: Price
    reduce_scatter: Price
    all_reduce: Price
    across: Price = lambda nbytes: 0.0

    @classmethod
    def rings(cls, sharding: Sharding, link: Link, slow: Link | None = None) -> Wires:
        """Rings on ``link`` inside a group of shards, and on the ``slow`` one (default: the same) between replicas."""
        n = sharding.shards
        return cls(
            closed_forms.all_gather(n, link),
            closed_forms.reduce_scatter(n, link),
            closed_forms.ring(n, link),
            closed_forms.ring(sharding.replicas, slow or link),
        )
