"""Hooks on data loaders: each epoch of each loader, with its sampler and its first batch."""

import weakref
from collections.abc import Callable, Sized
from typing import Any

from torch.utils.data import DataLoader, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dpbook.runs.watching.hashing import short
from dpbook.runs.watching.journal import Recorder, place


class Loaders:
    """Records every loader that the script iterates over; a loader is identified by the line of that loop."""

    def __init__(self, recorder: Recorder) -> None:
        self.current: str | None = None
        self._recorder = recorder
        self._begun: weakref.WeakKeyDictionary[Any, dict[str, Any] | None] = weakref.WeakKeyDictionary()
        self._latest: dict[str, Any] | None = None
        recorder.replace(DataLoader, "__iter__", self._record_loader)
        recorder.replace(_BaseDataLoaderIter, "_next_index", self._record_epoch)
        recorder.replace(_BaseDataLoaderIter, "__next__", self._set_current)

    def _record_loader(self, begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(loader: Any) -> Any:
            source = place()
            self._latest = {"loader": f"{source[0]}:{source[1]}" if source else "", "place": source, **_about(loader)}
            iterator = begin(loader)
            self._begun.setdefault(iterator, self._latest)
            if iterator is getattr(loader, "_iterator", None):  # persistent workers share one iterator over all epochs
                self._begun[iterator] = self._latest
            return iterator

        return __iter__

    def _record_epoch(self, draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_index(iterator: Any) -> Any:
            indices = draw(iterator)
            epoch = self._begun.setdefault(iterator, self._latest)
            if epoch is not None and "order" not in epoch:  # the first batch of an epoch
                epoch["order"] = short([repr(indices).encode()])[0]
                self._recorder.note("epoch", **epoch)
            return indices

        return _next_index

    def _set_current(self, give: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __next__(iterator: Any) -> Any:
            batch = give(iterator)
            epoch = self._begun.get(iterator)
            self.current = epoch["loader"] if epoch else None
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
    except (TypeError, NotImplementedError):  # an iterable dataset has no length
        return None


def _padded(sampler: Any, dataset: Any) -> int | None:
    """Return the number of examples that a sampler repeats to give all ranks the same number.

    None if the sampler does not divide the examples among ranks.
    """
    total, length = getattr(sampler, "total_size", None), _length(dataset)
    return max(0, total - length) if isinstance(total, int) and length is not None else None


def _part(dataset: Any) -> str | None:
    """Return a hash of the indices of a subset, or None for another data set."""
    return short([repr(list(dataset.indices)).encode()])[0] if isinstance(dataset, Subset) else None
