"""Which examples a rank sees in a step: a function of seed, step and rank alone, so that resuming changes nothing."""

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
    """Sequences of ``tokens`` bytes of the text that ships with the package; one begins at every byte."""

    def __init__(self, tokens: int) -> None:
        packed = (DATA / "text" / "jargon.txt.gz").read_bytes()
        self.bytes = np.frombuffer(gzip.decompress(packed), np.uint8)
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.bytes) - self.tokens

    def examples(self, places: IntArray) -> Batch:
        """The sequences that begin there, and the same one byte later: what is to be predicted."""
        rows = torch.from_numpy(self.bytes[places[:, None] + np.arange(self.tokens + 1)].astype(np.int64))
        return rows[:, :-1], rows[:, 1:]


class Digits:
    """The digits for training, one token each."""

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
    """This rank's micro-batches of any step, as the book's own sampler deals the examples out.

    A global batch is the same for any number of ranks; one that an epoch's end leaves incomplete is left out. Raises
    `InvalidArgument` where there are fewer examples than a global batch has.
    """

    def __init__(self, source: Text | Digits, options: Options, rank: int, world: int) -> None:
        self.source, self.accumulation = source, options.accumulation
        self.share = options.batch * options.accumulation
        self.steps = len(source) // (world * self.share)
        if not self.steps:
            expected = f"at most the {len(source)} examples of the data: fewer ranks, or a smaller --batch"
            raise InvalidArgument("global batch", world * self.share, expected)
        self.sampler = Sampler(len(source), world, rank, seed=options.seed, fit=drop)
        self.own = self.sampler.indices()

    def __call__(self, step: int) -> Iterator[Batch]:
        """One batch for each micro-batch of ``step``, from 0 on."""
        epoch, index = divmod(step, self.steps)
        if epoch != self.sampler.epoch:
            self.sampler.set_epoch(epoch)
            self.own = self.sampler.indices()
        places = self.own[index * self.share : (index + 1) * self.share]
        return map(self.source.examples, np.split(places, self.accumulation))


class Ahead:
    """The same micro-batches, which a thread makes ready while the step before them is taken.

    ``pinned`` ones a GPU can copy by itself: from other memory the host would wait for what is queued before.
    """

    def __init__(self, batches: Callable[[int], Iterator[Batch]], *, pinned: bool) -> None:
        self.batches, self.pinned = batches, pinned
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def __call__(self, step: int) -> Iterator[Batch]:
        """Those of ``step``; the next step's are begun."""
        ready = self._next[1] if self._next and self._next[0] == step else self._begin(step)
        found = ready.result()
        self._next = step + 1, self._begin(step + 1)
        return iter(found)

    def _begin(self, step: int) -> "Future[list[Batch]]":
        return self._thread.submit(self._make, step)

    def _make(self, step: int) -> list[Batch]:
        made = list(self.batches(step))
        return [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in made] if self.pinned else made
