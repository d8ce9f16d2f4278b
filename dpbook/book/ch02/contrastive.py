"""In-batch contrastive learning: every example's loss depends on the other examples, which are its negatives."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dpbook import collectives
from dpbook.book.ch02.coupled import Coupled, Pass
from dpbook.core import InvalidArgument, check_int
from dpbook.replicas import Array, cross_entropy


class Contrastive(Coupled):
    """Two views of each example, embedded by one matrix W; each first view must pick out its own second view.

    The loss of example i is the cross-entropy of its scores a_i · b_j over the whole batch's j against label i, with
    a = x W and b = y W: the other examples of the batch are the negatives (van den Oord, Li and Vinyals, Representation
    Learning with Contrastive Predictive Coding, 2018). ``x`` and ``y`` are both (n, inputs).
    """

    def __init__(self, inputs: int, features: int) -> None:
        self.inputs, self.features = check_int("inputs", inputs, 1), check_int("features", features, 1)
        super().__init__({"W": (inputs, features)}, cross_entropy)

    def exchange(self, rows: list[Array]) -> list[Array]:
        """Gather all ranks' rows, in the order of the ranks, on every rank."""
        world, columns = len(rows), rows[0].shape[1]
        ends = np.cumsum([0, *(part.size for part in rows)])
        buffers = np.zeros((world, int(ends[-1])), rows[0].dtype)
        for rank, part in enumerate(rows):
            buffers[rank, ends[rank] : ends[rank + 1]] = part.ravel()
        gather = collectives.embed(
            collectives.all_gather(world),  # its rank r begins with chunk r + 1; here that is called r
            world,
            range(world),
            chunks=[(chunk - 1) % world for chunk in range(world)],
            bounds=collectives.FixedBounds(tuple(ends.tolist())),
        )
        everything = collectives.simulate(gather, buffers).buffers
        return [row.reshape(-1, columns) for row in everything]

    def _outputs(self, p: dict[str, Array], x: Array) -> Array:
        output: Array = x @ p["W"]
        return output

    def loss(self, params: Array, x: Array, y: Array) -> float:
        """Return the mean loss of the rows of ``x`` and ``y`` (n, inputs), each the negatives of the others."""
        scores = self.predict(params, x) @ self.predict(params, y).T
        return float(np.mean(cross_entropy(scores, np.arange(len(x)))[0]))

    def rank_pass(self, p: dict[str, Array], x: Array, y: Array, start: int) -> Pass:
        if y.shape != x.shape or y.dtype != x.dtype:
            raise InvalidArgument("y", f"{y.dtype} {y.shape}", f"second views like the first, {x.dtype} {x.shape}")
        first = yield x @ p["W"]
        second = yield y @ p["W"]
        _, slopes = cross_entropy(first @ second.T, np.arange(len(first)))
        own = slice(start, start + len(x))
        # The own second views are negatives of every other example, on all ranks: hence whole columns.
        return {"W": x.T @ (slopes[own] @ second) + y.T @ (slopes[:, own].T @ first)}


def plain_gather_gradients(
    model: Contrastive, params: Array, shards: Sequence[tuple[Array, Array]], loss_of: Literal["own", "all"] = "own"
) -> Array:
    """Return each rank's gradient (world, size) where gathered outputs carry no gradient back to the other ranks.

    That is what `torch.distributed.all_gather` gives, after which a rank puts its own outputs into their place again.

    Args:
        params: (world, size), one row per replica, all equal.
        shards: one (x, y) per rank, the two views, all of one length.
        loss_of: whether a rank takes the mean loss over its own first views, or over those of all ranks.
    """
    if loss_of not in ("own", "all"):
        raise InvalidArgument("loss_of", loss_of, "'own' or 'all'")
    n, world = len(shards[0][0]), len(shards)
    x, y = (np.concatenate(views) for views in zip(*shards, strict=True))
    first, second = model.predict(params[0], x), model.predict(params[0], y)
    _, slopes = cross_entropy(first @ second.T, np.arange(len(x)))
    gradients = []
    for rank, (own_x, own_y) in enumerate(shards):
        own = slice(rank * n, rank * n + n)
        seen = slice(None) if loss_of == "all" else own  # first views in whose loss the own second views are negatives
        both = own_x.T @ (slopes[own] @ second) + own_y.T @ (slopes[seen, own].T @ first[seen])
        gradients.append(both.ravel() / (n * world if loss_of == "all" else n))
    return np.stack(gradients)
