"""Examples of a rank in a step: they depend on seed, step and rank alone, so that resuming does not change them."""

import gzip
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from dpbook.core import DATA, InvalidArgument
from dpbook.replicas import Sampler, digits, drop, split
from dpbook.runs.trainer.options import Options

Batch = tuple[torch.Tensor, torch.Tensor]
IntArray = NDArray[np.int64]


class Text:
    """Sequences of ``tokens`` bytes of the packaged text; a sequence begins at every byte."""

    def __init__(self, tokens: int) -> None:
        packed = (DATA / "text" / "jargon.txt.gz").read_bytes()
        self.bytes = np.frombuffer(gzip.decompress(packed), np.uint8)
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.bytes) - self.tokens

    def examples(self, places: IntArray) -> Batch:
        """Return the sequences that begin at ``places``, and the targets: the same sequences one byte later."""
        rows = torch.from_numpy(self.bytes[places[:, None] + np.arange(self.tokens + 1)].astype(np.int64))
        return rows[:, :-1], rows[:, 1:]


class Digits:
    """Training digits, of one token each."""

    tokens = 1

    def __init__(self) -> None:
        (images, labels), _ = split(*digits(np.float32))
        self.images = torch.from_numpy(images.reshape(-1, 1, 8, 8))
        self.labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def examples(self, places: IntArray) -> Batch:
        return self.images[places], self.labels[places]


class Batches:
    """Micro-batches of this rank in any step, as the book's `Sampler` divides the examples.

    A global batch is the same for any number of ranks; an incomplete one at the end of an epoch is dropped. Raises
    `InvalidArgument` if the data have fewer examples than a global batch.
    """

    def __init__(self, source: Text | Digits, options: Options, rank: int, world: int) -> None:
        self.source, self.accumulation = source, options.accumulation
        self.share = options.batch * options.accumulation
        self.steps = len(source) // (world * self.share)
        if not self.steps:
            expected = f"at most the {len(source)} examples of the data: fewer ranks, or a smaller --batch"
            raise InvalidArgument("global batch", world * self.share, expected)
        self.sampler = Sampler(len(source), world, rank, seed=options.seed, fit=drop)
        self.indices = self.sampler.indices()

    def __call__(self, step: int) -> Iterator[Batch]:
        """Yield the micro-batches of ``step``, counted from 0."""
        epoch, index = divmod(step, self.steps)
        if epoch != self.sampler.epoch:
            self.sampler.set_epoch(epoch)
            self.indices = self.sampler.indices()
        places = self.indices[index * self.share : (index + 1) * self.share]
        return map(self.source.examples, np.split(places, self.accumulation))


class PrefetchedBatches:
    """The same micro-batches, prepared by a thread during the previous step.

    With ``pinned`` they are in pinned memory, from which a GPU copies asynchronously; a copy from other memory would
    wait for all queued work.
    """

    def __init__(self, batches: Callable[[int], Iterator[Batch]], *, pinned: bool) -> None:
        self.batches, self.pinned = batches, pinned
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def __call__(self, step: int) -> Iterator[Batch]:
        """Return the micro-batches of ``step``, and start to prepare those of the next step."""
        ready = self._next[1] if self._next and self._next[0] == step else self._begin(step)
        batches = ready.result()
        self._next = step + 1, self._begin(step + 1)
        return iter(batches)

    def _begin(self, step: int) -> "Future[list[Batch]]":
        return self._thread.submit(self._make, step)

    def _make(self, step: int) -> list[Batch]:
        batches = list(self.batches(step))
        return [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in batches] if self.pinned else batches
