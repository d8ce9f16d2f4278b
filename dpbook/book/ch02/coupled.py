"""Losses that couple examples: where the average of the shards' gradients is not the gradient of the batch.

The gradient of a mean over examples regroups freely as long as each example's loss depends on that example alone. Batch
normalisation and an in-batch contrastive loss break that: each example sees its neighbours, and a shard has fewer of
them. Both are repaired by exchanging what couples the examples *before* it is used.

A coupled model writes one rank's pass as a program that yields whatever must be known of the whole batch and is handed
it back. Run alone, a rank is handed its own: that is the loss over its shard. Run in step by `synchronised_gradients`,
the ranks are handed the batch's, and the average of what they return is the gradient of the batch.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import numpy as np

from dpbook.core import InvalidArgument
from dpbook.replicas import Array, Network

Pass: TypeAlias = Generator[Any, Any, dict[str, Array]]


class Coupled(Network):
    """A model whose examples see each other."""

    @abstractmethod
    def rank_pass(self, p: dict[str, Array], x: Array, y: Array, start: int) -> Pass:
        """Yield local arrays, receive what `exchange` makes of them; return what the own rows add to the gradient.

        Args:
            start: number of the batch's examples that lie on lower ranks.
        """

    @abstractmethod
    def exchange(self, rows: list[Array]) -> list[Array]:
        """Turn what the ranks have yielded into what each of them receives, by messages."""

    def sum_gradients(self, p: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
        return _in_step([self.rank_pass(p, x, y, 0)], lambda rows: rows)[0]


def synchronised_gradients(model: Coupled, params: Array, shards: Sequence[tuple[Array, Array]]) -> Array:
    """Return each rank's gradient (world, size) when all ranks use the whole batch's statistics or negatives.

    Like `local_gradients`, each is divided by the rank's own number of examples, so the same average follows (with
    ``counts`` where shards differ) and gives the gradient of the whole batch.

    Args:
        params: (world, size), one row per replica.
        shards: one (x, y) per rank, none empty.
    """
    if len(params) != len(shards) or len(shards) == 0:
        raise InvalidArgument("shards", f"{len(shards)} shards", f"one for each of {len(params)} replicas")
    starts = np.cumsum([0, *(len(x) for x, _ in shards)]).tolist()
    ranks = zip(params, shards, starts[:-1], strict=True)
    passes = [model.rank_pass(*model.check(own, x), y, start) for own, (x, y), start in ranks]
    sums = _in_step(passes, model.exchange)
    flat = [np.concatenate([mine[name].ravel() for name in model.shapes]) for mine in sums]
    return np.stack([own / len(x) for own, (x, _) in zip(flat, shards, strict=True)])


def _in_step(passes: list[Pass], exchange: Callable[[list[Array]], list[Array]]) -> list[dict[str, Array]]:
    """Run the ranks' passes from exchange to exchange until they return."""
    received: list[Any] = [None] * len(passes)
    while True:
        yielded, returned = [], []
        for one, value in zip(passes, received, strict=True):
            try:
                yielded.append(one.send(value))
            except StopIteration as end:
                returned.append(end.value)
        if returned:
            return returned
        received = exchange(yielded)
