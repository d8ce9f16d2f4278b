"""Where the examples come from: each epoch of each loader, with its sampler and the order that it begins with."""

import weakref
from collections.abc import Callable, Sized
from typing import Any

from torch.utils.data import DataLoader, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dpbook.runs.watching.hashing import short
from dpbook.runs.watching.journal import Recorder, place


class Loaders:
    """Watches every loader that the script iterates over. A loader is known by the line that does."""

    def __init__(self, recorder: Recorder) -> None:
        self.current: str | None = None
        self._recorder = recorder
        self._begun: weakref.WeakKeyDictionary[Any, dict[str, Any] | None] = weakref.WeakKeyDictionary()
        self._asked: dict[str, Any] | None = None
        recorder.replace(DataLoader, "__iter__", self._asked_for_batches)
        recorder.replace(_BaseDataLoaderIter, "_next_index", self._draws)
        recorder.replace(_BaseDataLoaderIter, "__next__", self._gives)

    def _asked_for_batches(self, begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(loader: Any) -> Any:
            where = place()
            self._asked = {"loader": f"{where[0]}:{where[1]}" if where else "", "place": where, **_about(loader)}
            iterator = begin(loader)
            self._begun.setdefault(iterator, self._asked)
            if iterator is getattr(loader, "_iterator", None):  # workers that stay have one iterator for all epochs
                self._begun[iterator] = self._asked
            return iterator

        return __iter__

    def _draws(self, draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_index(iterator: Any) -> Any:
            indices = draw(iterator)
            asked = self._begun.setdefault(iterator, self._asked)
            if asked is not None and "order" not in asked:  # the first batch of an epoch
                asked["order"] = short([repr(indices).encode()])[0]
                self._recorder.note("epoch", **asked)
            return indices

        return _next_index

    def _gives(self, give: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __next__(iterator: Any) -> Any:
            batch = give(iterator)
            asked = self._begun.get(iterator)
            self.current = asked["loader"] if asked else None
            return batch

        return __next__


def _about(loader: Any) -> dict[str, Any]:
    sampler = loader.sampler
    if sampler is None or type(sampler).__name__ == "_InfiniteConstantSampler" or not hasattr(sampler, "num_replicas"):
        sampler = getattr(loader.batch_sampler, "sampler", None) or sampler
    return {
        "batches": _length(loader),
        "sampler": type(sampler).__name__,
        "shuffle": getattr(sampler, "shuffle", None),
        "epoch": getattr(sampler, "epoch", None),
        "replicas": getattr(sampler, "num_replicas", None),
        "examples": _length(loader.dataset),
        "padded": _padded(sampler, loader.dataset),
        "part": _part(loader.dataset),
    }


def _length(sized: Any) -> int | None:
    try:
        return len(sized) if isinstance(sized, Sized) else None
    except (TypeError, NotImplementedError):  # an iterable dataset has none
        return None


def _padded(sampler: Any, dataset: Any) -> int | None:
    """How many examples a sampler gives twice, so that all ranks have as many; None where it does not divide."""
    total, length = getattr(sampler, "total_size", None), _length(dataset)
    return max(0, total - length) if isinstance(total, int) and length is not None else None


def _part(dataset: Any) -> str | None:
    """A hash of which examples a subset has."""
    return short([repr(list(dataset.indices)).encode()])[0] if isinstance(dataset, Subset) else None
