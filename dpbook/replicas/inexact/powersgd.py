"""PowerSGD: every matrix of the gradient as a product of two thin ones, which can be summed on the way.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (2019).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from dpbook.core import InvalidArgument, check_int
from dpbook.replicas.array import Array
from dpbook.replicas.inexact.feedback import Compressed, Exchange, Exchanged
from dpbook.replicas.method import Cluster


@dataclass(frozen=True, repr=False)
class LowRank(Compressed):
    """Send rank-``rank`` factors of every matrix of the model, by two all-reduces with the run's schedule.

    In each step every matrix M (n, m) goes through one round of power iteration: P, the average of M Q over the
    ranks, is made orthonormal; the new Q is the average of Mᵀ P; the average of M is taken to be P Qᵀ. Q is kept for
    the next step (warm start). The Ps of all matrices travel in one buffer and the Qs in another, (n + m) · rank
    numbers in place of n · m; tensors of one dimension travel uncompressed, with the Ps. One of more than two is read
    as a matrix of as many rows as its first dimension has.

    Attributes:
        rank: columns of P and Q; no more than the matrix has rows or columns, whichever are fewer.
        seed: of the first Q, normal numbers that are the same on all ranks.
    """

    rank: int
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("rank", self.rank, 1)
        check_int("seed", self.seed, 0)

    def exchange(self, cluster: Cluster) -> Exchange:
        if not any(len(shape) > 1 for shape in cluster.shapes.values()):
            raise InvalidArgument("model", dict(cluster.shapes), "one with shapes, of which some are matrices")
        return _PowerIteration(self, cluster)


class _PowerIteration:
    """The exchange of a run. It remembers one Q (world, m, rank) for each matrix."""

    def __init__(self, method: LowRank, cluster: Cluster) -> None:
        rng = np.random.default_rng(method.seed)
        self.shapes = [
            (shape[0], math.prod(shape[1:])) if len(shape) > 1 else shape for shape in cluster.shapes.values()
        ]
        self.qs = []
        for n, m in filter(_is_matrix, self.shapes):
            q = rng.standard_normal((m, min(method.rank, n, m)))
            self.qs.append(np.tile(q, (cluster.world, 1, 1)))

    def __call__(self, rows: Array, cluster: Cluster) -> Exchanged:
        tensors = _cut(rows, self.shapes)
        matrices = [tensor for tensor in tensors if tensor.ndim == 3]
        vectors = [tensor for tensor in tensors if tensor.ndim < 3]
        ps = [matrix @ q.astype(rows.dtype) for matrix, q in zip(matrices, self.qs, strict=True)]
        averaged = _average([*ps, *vectors], cluster)
        ps = [np.linalg.qr(p)[0] for p in averaged[: len(ps)]]
        own = [matrix.swapaxes(1, 2) @ p for matrix, p in zip(matrices, ps, strict=True)]
        self.qs = _average(own, cluster)
        return Exchanged(
            self._joined(ps, self.qs, averaged[len(ps) :]),
            self._joined(ps, own, vectors),
        )

    def _joined(self, ps: Sequence[Array], qs: Sequence[Array], vectors: Sequence[Array]) -> Array:
        """Rows (world, size) of the matrices P Qᵀ and of the vectors, in the order of the model's tensors."""
        products = iter([p @ q.swapaxes(1, 2) for p, q in zip(ps, qs, strict=True)])
        others = iter(vectors)
        tensors = [next(products if _is_matrix(shape) else others) for shape in self.shapes]
        return _flat(tensors)


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2


def _average(tensors: Sequence[Array], cluster: Cluster) -> list[Array]:
    """Average tensors (world, …) over the ranks as one buffer."""
    return _cut(cluster.average(_flat(tensors)), [tensor.shape[1:] for tensor in tensors])


def _flat(tensors: Sequence[Array]) -> Array:
    return np.concatenate([tensor.reshape(len(tensor), -1) for tensor in tensors], axis=1)


def _cut(rows: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The tensors (world, *shape) that lie one after another in rows (world, size)."""
    ends = accumulate(map(math.prod, shapes), initial=0)
    parts = [rows[:, a:b] for a, b in pairwise(ends)]
    return [part.reshape(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]
