"""Losses that couple examples, for which the average of the shards' gradients is not the gradient of the batch.

The gradient of a mean over examples can be regrouped if each example's loss depends on that example alone. In batch
normalisation and in-batch contrastive losses it does not: each example depends on its neighbours, and a shard has fewer
of them. Both are repaired by exchanging the coupling values *before* they are used.

A coupled model writes one rank's pass as a generator. It yields local values, and receives those of the whole batch.
Alone, a rank receives its own values, which gives the loss over its shard. In `synchronised_gradients` the ranks
receive the batch's, and the average of their results is the gradient of the batch.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from dpbook import collectives
from dpbook.core import InvalidArgument, check_int
from dpbook.replicas import Array, Loss, Network, cross_entropy, squared_error

Pass: TypeAlias = Generator[Any, Any, dict[str, Array]]


class Coupled(Network):
    """A model in which the loss of an example depends on other examples."""

    @abstractmethod
    def rank_pass(self, p: dict[str, Array], x: Array, y: Array, start: int) -> Pass:
        """Yield local arrays, receive the results of `exchange`, and return this rank's part of the gradient.

        ``start`` is the number of the batch's examples on lower ranks.
        """

    @abstractmethod
    def exchange(self, rows: list[Array]) -> list[Array]:
        """Turn the arrays that the ranks have yielded into those that they receive."""

    def sum_gradients(self, p: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
        return _in_step([self.rank_pass(p, x, y, 0)], lambda rows: rows)[0]


def synchronised_gradients(model: Coupled, params: Array, shards: Sequence[tuple[Array, Array]]) -> Array:
    """Return each rank's gradient (world, size) when all ranks use the whole batch's statistics or negatives.

    Like `local_gradients` with the same arguments, each is divided by the rank's own number of examples, so the same
    average follows (with ``counts`` where shards differ) and gives the gradient of the whole batch.
    """
    if len(params) != len(shards) or len(shards) == 0:
        raise InvalidArgument("shards", f"{len(shards)} shards", f"one for each of {len(params)} replicas")
    starts = np.cumsum([0, *(len(x) for x, _ in shards)]).tolist()
    ranks = zip(params, shards, starts[:-1], strict=True)
    passes = [model.rank_pass(*model.check(replica, x), y, start) for replica, (x, y), start in ranks]
    sums = _in_step(passes, model.exchange)
    flat = [np.concatenate([mine[name].ravel() for name in model.shapes]) for mine in sums]
    return np.stack([gradient / len(x) for gradient, (x, _) in zip(flat, shards, strict=True)])


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


EPSILON = 1e-5  # added to a variance before its root is taken


class BatchNorm(Coupled):
    """tanh(scale · x̂ + shift) W2 + b2, with x̂ = (h − mean) / √(variance + 1e-5) of h = x W1 over the batch.

    The variance is the mean of squares minus the square of the mean, so that only sums are exchanged (Ioffe and
    Szegedy, Batch Normalization, 2015). `predict` and `loss` use the statistics of their arguments' rows.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int = 1, loss: Loss = squared_error) -> None:
        self.inputs, self.hidden = check_int("inputs", inputs, 1), check_int("hidden", hidden, 1)
        self.outputs = check_int("outputs", outputs, 1)
        each = (hidden,)
        shapes = {"W1": (inputs, hidden), "scale": each, "shift": each, "W2": (hidden, outputs), "b2": (outputs,)}
        super().__init__(shapes, loss)

    def init(self, rng: np.random.Generator, dtype: DTypeLike = np.float64) -> Array:
        """Draw the weights as every model does; scales start at 1."""
        params = super().init(rng, dtype)
        self.views(params)["scale"][...] = 1
        return params

    def exchange(self, rows: list[Array]) -> list[Array]:
        """Sum over the ranks."""
        return list(np.asarray(collectives.simulate(collectives.ring(len(rows)), rows).buffers))

    def _outputs(self, p: dict[str, Array], x: Array) -> Array:
        h = x @ p["W1"]
        normal, _ = _normalise(h, h.sum(axis=0), (h * h).sum(axis=0), len(x))
        output: Array = np.tanh(p["scale"] * normal + p["shift"]) @ p["W2"] + p["b2"]
        return output

    def rank_pass(self, p: dict[str, Array], x: Array, y: Array, start: int) -> Pass:
        h = x @ p["W1"]
        n = yield np.array([len(x)], x.dtype)
        total = yield h.sum(axis=0)
        squares = yield (h * h).sum(axis=0)
        normal, inverse = _normalise(h, total, squares, n)
        hidden = np.tanh(p["scale"] * normal + p["shift"])
        _, slopes = self._loss(hidden @ p["W2"] + p["b2"], y)
        before_tanh = (slopes @ p["W2"].T) * (1 - hidden * hidden)
        before_scale = before_tanh * p["scale"]
        # Every example of the batch moves the mean and the variance, and through them every other example's loss.
        by_mean = (yield before_scale.sum(axis=0)) / n
        by_variance = (yield (before_scale * normal).sum(axis=0)) / n
        return {
            "W1": x.T @ (inverse * (before_scale - by_mean - normal * by_variance)),
            "scale": (before_tanh * normal).sum(axis=0),
            "shift": before_tanh.sum(axis=0),
            "W2": hidden.T @ slopes,
            "b2": slopes.sum(axis=0),
        }


def _normalise(h: Array, total: Array, squares: Array, n: Array | int) -> tuple[Array, Array]:
    """Return (h − mean) / √(variance + ε), and that factor, from the sums over the batch."""
    mean = total / n
    inverse = 1 / np.sqrt(squares / n - mean * mean + EPSILON)
    return (h - mean) * inverse, inverse


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
        return [np.concatenate(rows)] * len(rows)

    def _outputs(self, p: dict[str, Array], x: Array) -> Array:
        return x @ p["W"]

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
        mine = slice(start, start + len(x))
        # This rank's second views are negatives of all other examples, on all ranks: hence whole columns.
        return {"W": x.T @ (slopes[mine] @ second) + y.T @ (slopes[:, mine].T @ first)}


def plain_gather_gradients(
    model: Contrastive, params: Array, shards: Sequence[tuple[Array, Array]], loss_of: Literal["own", "all"] = "own"
) -> Array:
    """Return each rank's gradient (world, size) if gathered outputs carry no gradient back to the other ranks.

    `torch.distributed.all_gather` behaves so; a rank then replaces its own part of the result by its local outputs. The
    replicas are equal, and the shards have one length. A rank takes the mean loss over its "own" first views, or over
    those of "all" ranks.
    """
    if loss_of not in ("own", "all"):
        raise InvalidArgument("loss_of", loss_of, "'own' or 'all'")
    n, world = len(shards[0][0]), len(shards)
    x, y = (np.concatenate(views) for views in zip(*shards, strict=True))
    first, second = model.predict(params[0], x), model.predict(params[0], y)
    _, slopes = cross_entropy(first @ second.T, np.arange(len(x)))
    gradients = []
    for rank, (own_x, own_y) in enumerate(shards):
        mine = slice(rank * n, rank * n + n)
        counted = slice(None) if loss_of == "all" else mine  # first views whose loss has this rank's second views
        both = own_x.T @ (slopes[mine] @ second) + own_y.T @ (slopes[counted, mine].T @ first[counted])
        gradients.append(both.ravel() / (n * world if loss_of == "all" else n))
    return np.stack(gradients)
