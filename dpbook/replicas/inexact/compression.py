"""Compressors of one rank's vector: few of its numbers, or one bit of each.

What two ranks send cannot be added up on the way, so every rank gets all payloads by an all-gather, and averages them
itself. A rank therefore sends N − 1 payloads, its own and those that it passes on.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from dpbook.core import InvalidArgument, check_float
from dpbook.replicas.array import Array
from dpbook.replicas.inexact.feedback import Compressed, Exchange, Exchanged
from dpbook.replicas.method import Cluster


class Gathered(Compressed):
    """A compressor whose payloads are gathered: it says how a vector becomes bytes, and what they stand for."""

    @abstractmethod
    def encode(self, vector: Array) -> bytes:
        """Return what is sent of a vector (size,)."""

    @abstractmethod
    def decode(self, payload: bytes, like: Array) -> Array:
        """Return what a payload stands for, an array like ``like``, whose numbers do not matter."""

    def exchange(self, cluster: Cluster) -> Exchange:
        return self._exchange

    def _exchange(self, rows: Array, cluster: Cluster) -> Exchanged:
        payloads = [self.encode(row) for row in rows]
        received = cluster.all_gather(payloads)
        distinct = {payload for own in received for payload in own}
        decoded = {payload: self.decode(payload, rows[0]) for payload in distinct}
        averaged = [sum((decoded[payload] for payload in own[1:]), decoded[own[0]]) for own in received]
        return Exchanged(np.stack(averaged) / cluster.world, np.stack([decoded[payload] for payload in payloads]))


@dataclass(frozen=True, repr=False)
class TopK(Gathered):
    """Send the ⌈share · size⌉ numbers of the largest magnitude, each with its index in 4 bytes; the others count as 0.

    With error feedback that is what Stich, Cordonnier and Jaggi analyse, "Sparsified SGD with Memory" (2018). Deep
    Gradient Compression adds ``momentum``, and also clipping, a warm-up and masks, which are not here. NaN counts as
    the largest magnitude: it is sent, and seen.
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
class Sign(Gathered):
    """Send one bit of every number, its sign, and one scale, the mean magnitude: that has the least squared error.

    The bits lie eight to a byte; 0 counts as positive. With error feedback this is EF-SignSGD of Karimireddy et al.,
    "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019), with one scale for all tensors.
    """

    def encode(self, vector: Array) -> bytes:
        scale: bytes = np.abs(vector).mean(dtype=vector.dtype).tobytes()
        return scale + np.packbits(vector >= 0).tobytes()

    def decode(self, payload: bytes, like: Array) -> Array:
        scale = np.frombuffer(payload, like.dtype, 1)
        bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=like.itemsize), count=like.size)
        return np.where(bits, scale, -scale)
