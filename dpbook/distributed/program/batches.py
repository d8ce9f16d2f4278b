"""Which examples a rank sees in a step: a function of seed, step and rank alone, so that resuming changes nothing."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray

from dpbook.distributed.program.options import Options
from dpbook.errors import InvalidArgument
from dpbook.replicas import digits, split

Batch = tuple[torch.Tensor, torch.Tensor]
IntArray = NDArray[np.int64]


class Text:
    """Sequences of bytes that begin at random places of the text that ships with the package."""

    def __init__(self, options: Options) -> None:
        packed = files("dpbook").joinpath("data", "text", "jargon.txt.gz").read_bytes()
        self.bytes = np.frombuffer(gzip.decompress(packed), np.uint8)
        self.options = options

    def examples(self, places: IntArray) -> Batch:
        """The sequences that begin there, and the same one byte later: what is to be predicted."""
        length = self.options.context
        rows = torch.from_numpy(self.bytes[places[:, None] + np.arange(length + 1)].astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    def draw(self, step: int, count: int) -> IntArray:
        """Places of a global batch of ``count`` sequences."""
        rng = np.random.default_rng([self.options.seed, step])
        return rng.integers(0, len(self.bytes) - self.options.context - 1, count)

    @property
    def tokens(self) -> int:
        """Tokens in an example."""
        return self.options.context


class Digits:
    """The digits for training, in an order of its own for every epoch; an incomplete last batch is left out."""

    def __init__(self, options: Options) -> None:
        (images, labels), _ = split(*digits(np.float32))
        self.images = torch.from_numpy(images.reshape(-1, 1, 8, 8))
        self.labels = torch.from_numpy(labels)
        self.seed = options.seed

    def examples(self, places: IntArray) -> Batch:
        return self.images[places], self.labels[places]

    def draw(self, step: int, count: int) -> IntArray:
        steps = len(self.labels) // count
        if not steps:
            raise InvalidArgument(
                "global batch", count, f"at most the {len(self.labels)} digits: fewer ranks, or a smaller --batch"
            )
        epoch, index = divmod(step, steps)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.labels))
        return order[index * count : (index + 1) * count]

    @property
    def tokens(self) -> int:
        return 1


def batches(source: Text | Digits, options: Options, step: int, rank: int, world: int) -> Iterator[Batch]:
    """This rank's micro-batches of a step: the global batch is cut into a part for each micro-batch of each rank."""
    places = source.draw(step, world * options.batch * options.accumulation)
    for micro in range(options.accumulation):
        part = rank * options.accumulation + micro
        yield source.examples(places[part * options.batch : (part + 1) * options.batch])
