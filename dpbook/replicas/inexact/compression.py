"""Compressed gradients with error feedback: what a step did not send is added to the next gradient.

Error feedback: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs" (2014); why it converges: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (2018), and
Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019). One implementation
serves all compressors, which differ in their `exchange`. The last two papers compress the gradient times the learning
rate, so the residual keeps the rate of its step. Here, as in PowerSGD, the residual is a gradient, and is applied at
the rate of the step that sends it. The two are equal if the rate does not change.

A gradient that is sent late has missed the momentum of the steps between. Lin et al., "Deep Gradient Compression"
(2018), section 3.2, therefore compress every rank's velocity instead of its gradient (momentum correction).

`TopK` and `Sign` send few of a vector's numbers, or one bit of each. Their payloads cannot be added up on the way, so
every rank gets all payloads by an all-gather and averages them itself; it sends N − 1 payloads, its own and those that
it passes on. In two phases it sends less than two: an all-to-all of stripes, whose owners average and compress again,
then an all-gather. This is ``compressed_allreduce`` in DeepSpeed (Tang et al., "1-bit Adam: Communication Efficient
Large-Scale Training with Adam's Convergence Speed", 2021), with error feedback at the worker and at the owner.

`LowRank` is PowerSGD: it sends every matrix as a product of two thin ones, which can be summed on the way (Vogels,
Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019).
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from dpbook.collectives import chunk_bounds
from dpbook.core import InvalidArgument, check_float, check_int, check_type
from dpbook.replicas.four_phases import update
from dpbook.replicas.method import Method, RankGroup, Step
from dpbook.replicas.networks import Array


class ExchangeResult(NamedTuple):
    """Result of an exchange; both arrays have shape (world, size).

    Row r of ``averaged`` is the average of the ranks' parts, as rank r computes it from its messages. Row r of
    ``parts`` is the part of rank r in that average, which is its vector after compression.
    """

    averaged: Array
    parts: Array


Exchange: TypeAlias = Callable[[Array, RankGroup], ExchangeResult]
"""Function that compresses, sends and averages one vector per rank, (world, size). It may keep state between steps."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Compressed(Method):
    """The exact loop with a lossy exchange instead of the average.

    Attributes:
        feedback: whether the part of its vector that a rank did not send is added to the next vector.
        momentum: momentum of every rank's velocity, v ← momentum · v + g, which is compressed instead of its gradient
            g. With `SGD` and a lossless exchange that equals the optimizer `Momentum`, whose velocity is of averages.
    """

    feedback: bool = True
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_type("feedback", self.feedback, bool, "True or False")
        object.__setattr__(self, "momentum", check_float("momentum", self.momentum, minimum=0, below=1))

    @abstractmethod
    def exchange(self, group: RankGroup) -> Exchange:
        """Return the exchange of a new run, which is called once per step."""

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        exchange, velocity, residual = self.exchange(group), np.zeros_like(params), np.zeros_like(params)
        while True:
            velocity = self.momentum * velocity + group.gradients(params)
            wanted = velocity + residual
            averaged, parts = exchange(wanted, group)
            if self.feedback:
                residual = wanted - parts
            params = update(params, averaged, group.optimizers)
            yield Step(params, averaged)


@dataclass(frozen=True, kw_only=True, repr=False)
class GatheringCompressor(Compressed):
    """A compressor whose payloads are gathered; subclasses encode a vector as bytes and decode them.

    Attributes:
        two_phase: whether each rank averages one stripe of the vectors and compresses that average again, so that a
            rank sends less than two payloads for any number of ranks, not N − 1. With ``feedback`` the owner of a
            stripe adds to its next average what the second compression lost.
    """

    two_phase: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("two_phase", self.two_phase, bool, "True or False")

    @abstractmethod
    def encode(self, vector: Array) -> bytes:
        """Return the payload of a vector (size,)."""

    @abstractmethod
    def decode(self, payload: bytes, like: Array) -> Array:
        """Return the vector of a payload, with the shape and dtype of ``like``."""

    def exchange(self, group: RankGroup) -> Exchange:
        return _TwoPhaseExchange(self) if self.two_phase else self._gather

    def _gather(self, rows: Array, group: RankGroup) -> ExchangeResult:
        payloads = [self.encode(row) for row in rows]
        received = group.all_gather(payloads)
        distinct = {payload for on_rank in received for payload in on_rank}
        decoded = {payload: self.decode(payload, rows[0]) for payload in distinct}
        averaged = [sum((decoded[payload] for payload in on_rank[1:]), decoded[on_rank[0]]) for on_rank in received]
        return ExchangeResult(np.stack(averaged) / group.world, np.stack([decoded[payload] for payload in payloads]))


class _TwoPhaseExchange:
    """Exchange of a run in two phases; it keeps what the owner of each stripe has not sent yet."""

    def __init__(self, compressor: GatheringCompressor) -> None:
        self.compressor = compressor
        self.residuals: list[Array] | None = None

    def __call__(self, rows: Array, group: RankGroup) -> ExchangeResult:
        cuts = [slice(*ends) for ends in pairwise(chunk_bounds(rows.shape[1], group.world))]
        sent = [[self._encode(row[cut]) for cut in cuts] for row in rows]
        parts = np.stack([self._joined(payloads, rows[0], cuts) for payloads in sent])
        received = group.all_to_all(sent)
        averages = [
            np.mean([self._decode(payload, rows[0, cut]) for payload in payloads], axis=0, dtype=rows.dtype)
            for cut, payloads in zip(cuts, received, strict=True)
        ]
        if self.residuals is not None:
            averages = [average + residual for average, residual in zip(averages, self.residuals, strict=True)]
        results = [self._encode(average) for average in averages]
        if self.compressor.feedback:
            self.residuals = [a - self._decode(payload, a) for a, payload in zip(averages, results, strict=True)]
        gathered = group.all_gather(results)
        return ExchangeResult(np.stack([self._joined(payloads, rows[0], cuts) for payloads in gathered]), parts)

    def _encode(self, stripe: Array) -> bytes:
        return self.compressor.encode(stripe) if stripe.size else b""

    def _decode(self, payload: bytes, like: Array) -> Array:
        return self.compressor.decode(payload, like) if like.size else like

    def _joined(self, payloads: Sequence[bytes], like: Array, cuts: Sequence[slice]) -> Array:
        return np.concatenate([self._decode(payload, like[cut]) for payload, cut in zip(payloads, cuts, strict=True)])


@dataclass(frozen=True, repr=False)
class TopK(GatheringCompressor):
    """Send the ⌈share · size⌉ numbers of the largest magnitude, each with its index in 4 bytes; the others count as 0.

    With error feedback that is the method that Stich, Cordonnier and Jaggi analyse, "Sparsified SGD with Memory"
    (2018). Deep Gradient Compression adds ``momentum``, and also clipping, a warm-up and masks, which are missing here.
    NaN counts as the largest magnitude, so that it is sent and stays visible.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < check_float("share", self.share) <= 1:
            raise InvalidArgument("share", self.share, "a number above 0 and at most 1")

    def encode(self, vector: Array) -> bytes:
        k = math.ceil(self.share * vector.size)
        chosen = np.argpartition(np.abs(vector), vector.size - k)[vector.size - k :].astype(np.uint32)
        return chosen.tobytes() + vector[chosen].tobytes()

    def decode(self, payload: bytes, like: Array) -> Array:
        k = len(payload) // (4 + like.itemsize)
        vector = np.zeros_like(like)
        vector[np.frombuffer(payload, np.uint32, k)] = np.frombuffer(payload, like.dtype, k, offset=4 * k)
        return vector


@dataclass(frozen=True, repr=False)
class Sign(GatheringCompressor):
    """Send one bit of every number, its sign, and one scale: the mean magnitude, which has the least squared error.

    Eight bits share a byte; 0 counts as positive. With error feedback this is EF-SignSGD of Karimireddy et al.,
    "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019), with one scale for all tensors.
    """

    def encode(self, vector: Array) -> bytes:
        scale: bytes = np.abs(vector).mean(dtype=vector.dtype).tobytes()
        return scale + np.packbits(vector >= 0).tobytes()

    def decode(self, payload: bytes, like: Array) -> Array:
        scale = np.frombuffer(payload, like.dtype, 1)
        bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=like.itemsize), count=like.size)
        return np.where(bits, scale, -scale)


@dataclass(frozen=True, repr=False)
class LowRank(Compressed):
    """Send rank-``rank`` factors of every matrix of the model, by two all-reduces with the run's schedule.

    Each step runs one round of power iteration on every matrix M (n, m). P, the average of M Q over the ranks, is made
    orthonormal; the new Q is the average of Mᵀ P; P Qᵀ approximates the average of M. The next step starts from this Q
    (warm start). The Ps of all matrices share one buffer and the Qs another, (n + m) · rank numbers instead of n · m.
    Tensors of one dimension are sent uncompressed, with the Ps. A tensor of more than two dimensions is flattened to a
    matrix with the rows of its first dimension.

    P and Q have ``rank`` columns, at most the smaller dimension of the matrix. The normal numbers of the first Q, drawn
    from ``seed``, are the same on all ranks.
    """

    rank: int
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("rank", self.rank, 1)
        check_int("seed", self.seed, 0)

    def exchange(self, group: RankGroup) -> Exchange:
        if not any(len(shape) > 1 for shape in group.shapes.values()):
            raise InvalidArgument("model", dict(group.shapes), "one with shapes, at least one of them a matrix")
        return _PowerIteration(self, group)


class _PowerIteration:
    """Exchange of a run, which keeps one Q (world, m, rank) for each matrix."""

    def __init__(self, method: LowRank, group: RankGroup) -> None:
        rng = np.random.default_rng(method.seed)
        self.shapes = [(shape[0], math.prod(shape[1:])) if len(shape) > 1 else shape for shape in group.shapes.values()]
        self.qs = []
        for n, m in filter(_is_matrix, self.shapes):
            q = rng.standard_normal((m, min(method.rank, n, m)))
            self.qs.append(np.tile(q, (group.world, 1, 1)))

    def __call__(self, rows: Array, group: RankGroup) -> ExchangeResult:
        tensors = _cut(rows, self.shapes)
        matrices = [tensor for tensor in tensors if tensor.ndim == 3]
        vectors = [tensor for tensor in tensors if tensor.ndim < 3]
        ps = [matrix @ q.astype(rows.dtype) for matrix, q in zip(matrices, self.qs, strict=True)]
        averaged = _average([*ps, *vectors], group)
        ps = [np.linalg.qr(p)[0] for p in averaged[: len(ps)]]
        local_qs = [matrix.swapaxes(1, 2) @ p for matrix, p in zip(matrices, ps, strict=True)]
        self.qs = _average(local_qs, group)
        whole, parts = self._joined(ps, self.qs, averaged[len(ps) :]), self._joined(ps, local_qs, vectors)
        return ExchangeResult(whole, parts)

    def _joined(self, ps: Sequence[Array], qs: Sequence[Array], vectors: Sequence[Array]) -> Array:
        """Return rows (world, size) of the matrices P Qᵀ and the vectors, in the order of the model's tensors."""
        products = iter([p @ q.swapaxes(1, 2) for p, q in zip(ps, qs, strict=True)])
        others = iter(vectors)
        tensors = [next(products if _is_matrix(shape) else others) for shape in self.shapes]
        return _flat(tensors)


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2


def _average(tensors: Sequence[Array], group: RankGroup) -> list[Array]:
    """Average tensors (world, …) over the ranks as one buffer."""
    return _cut(group.average(_flat(tensors)), [tensor.shape[1:] for tensor in tensors])


def _flat(tensors: Sequence[Array]) -> Array:
    return np.concatenate([tensor.reshape(len(tensor), -1) for tensor in tensors], axis=1)


def _cut(rows: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the tensors (world, *shape) that lie one after another in rows (world, size)."""
    ends = accumulate(map(math.prod, shapes), initial=0)
    parts = [rows[:, a:b] for a, b in pairwise(ends)]
    return [part.reshape(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]
