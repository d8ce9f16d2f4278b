"""Hooks on data loaders and on functions that a script calls: clipping, schedulers, gradient scalers, collectives."""

import functools
import inspect
import itertools
import sys
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sized
from contextlib import contextmanager, suppress
from datetime import timedelta
from operator import itemgetter
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.weak import WeakIdKeyDictionary

from dpbook.ddp import tensors_in
from dpbook.runs.watching.hashing import short
from dpbook.runs.watching.journal import Recorder, place
from dpbook.runs.watching.loss_graph import nodes, saves_row


class Loaders:
    """Records every loader that the script iterates over; a loader is identified by the line of that loop."""

    def __init__(self, recorder: Recorder) -> None:
        self.current: dict[str, Any] = {}  # the epoch of the latest batch
        self.batches = 0
        self._loops: Counter[str] = Counter()  # begun on each line
        self._recorder = recorder
        self._begun: weakref.WeakKeyDictionary[Any, dict[str, Any] | None] = weakref.WeakKeyDictionary()
        self._latest: dict[str, Any] | None = None
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._subsets: weakref.WeakKeyDictionary[Any, list[Any] | None] = weakref.WeakKeyDictionary()
        recorder.replace(DataLoader, "__iter__", self._record_loader)
        recorder.after(_BaseDataLoaderIter, "_next_index", self._record_epoch)
        recorder.after(_BaseDataLoaderIter, "__next__", self._set_current)
        recorder.after(Subset, "__init__", self._record_subset)

    def _record_subset(self, result: None, subset: Any, *args: Any, **kwargs: Any) -> None:
        with suppress(TypeError):  # a class of the script's own may have no hash
            self._subsets[subset] = place()

    def _number(self, thing: Any) -> int:
        """Return a number that no other loader or sampler has had; for a list, which has no weak reference, its id."""
        try:
            if thing not in self._numbers:
                self._numbers[thing] = next(self._next_number)
            return self._numbers[thing]
        except TypeError:
            return id(thing)

    def _record_loader(self, begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(loader: Any) -> Any:
            source = place()
            self._latest = {"loader": f"{source[0]}:{source[1]}" if source else "", "place": source, **_about(loader)}
            self._latest |= {"object": self._number(loader), "sampler_object": self._number(_sampler(loader))}
            self._latest["part_place"] = None
            self._loops[self._latest["loader"]] += 1
            self._latest |= {"loop": self._loops[self._latest["loader"]], "batch": 0}
            with suppress(TypeError):  # a data set such as a list
                self._latest["part_place"] = self._subsets.get(loader.dataset)
            iterator = begin(loader)
            self._begun.setdefault(iterator, self._latest)
            if iterator is getattr(loader, "_iterator", None):  # persistent workers share one iterator over all epochs
                self._begun[iterator] = self._latest
            return iterator

        return __iter__

    def _record_epoch(self, indices: Any, iterator: Any) -> None:
        epoch = self._begun.setdefault(iterator, self._latest)
        if epoch is not None and "order" not in epoch:  # the first batch of an epoch
            epoch["order"] = short([repr(indices).encode()])[0]
            self._recorder.note("epoch", **epoch)

    @property
    def position(self) -> list[Any] | None:
        """Line of the latest batch's loop, number of the loop and of the batch in it, and its number of batches.

        None if there is no loop, or another thread reads the batches ahead.
        """
        if "loop" not in self.current or self.current["thread"] != threading.get_ident():
            return None
        return [self.current[key] for key in ("loader", "loop", "batch", "batches")]

    def _set_current(self, batch: Any, iterator: Any) -> None:
        self.current = self._begun.get(iterator) or {"batch": 0}
        self.current["batch"] += 1
        self.current["thread"] = threading.get_ident()
        self.batches += 1


def _sampler(loader: Any) -> Any:
    """Return the sampler that divides a loader's examples among ranks, or the one that orders them.

    A batch sampler of the script's own has none, or gives it another order: it stands for its sampler.
    """
    candidates = (loader.sampler, getattr(loader.batch_sampler, "sampler", None), loader.batch_sampler)
    dividing = next((each for each in candidates if hasattr(each, "num_replicas")), None)
    if dividing is not None:
        return dividing
    return loader.sampler if type(loader.batch_sampler) in (BatchSampler, type(None)) else loader.batch_sampler


SAMPLED_INDICES = 256
"""Indices of a subset whose hashes are kept, the smallest ones."""


def _about(loader: Any) -> dict[str, Any]:
    sampler = _sampler(loader)
    divides_examples = hasattr(sampler, "num_replicas") and not hasattr(sampler, "batch_size")
    about = {
        "batches": _length(loader),
        "sampler": type(sampler).__name__,
        "shuffle": getattr(sampler, "shuffle", None),
        "epoch": getattr(sampler, "epoch", None),
        "replicas": getattr(sampler, "num_replicas", None),
        "examples": _length(loader.dataset),
        "share": _length(sampler) if divides_examples else None,
        "part": None,
        "part_sample": None,
    }
    if isinstance(loader.dataset, Subset):
        indices = list(loader.dataset.indices)
        hashes = sorted(int(index) * 2654435761 % 2**32 for index in indices)
        about |= {"part": short([repr(indices).encode()])[0], "part_sample": hashes[:SAMPLED_INDICES]}
    return about


def _length(sized: Any) -> int | None:
    try:
        return len(sized) if isinstance(sized, Sized) else None
    except (TypeError, NotImplementedError):  # an iterable dataset has no length
        return None


COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "all_gather_object",
    "broadcast_object_list", "gather_object", "all_reduce_coalesced",
)  # fmt: skip


class GatheredCopies:
    """Values of a graph that the script gathers or sums between a forward and its backward, without a gradient.

    Of sums a single number is left out, which many scripts log. What is called inside an ``autograd.Function`` is left
    out, because such a function has a backward of its own. So is a gather of a tensor which never had a gradient, as
    the keys of a teacher.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._rows: list[tuple[torch.Tensor, list[Any] | None]] = []
        self._sums: list[tuple[Any, list[Any] | None]] = []
        self._detached: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
        recorder.after(torch.Tensor, "detach", self._record_detached)

    def _record_detached(self, detached: torch.Tensor, tensor: torch.Tensor) -> None:
        if tensor.grad_fn is not None and not torch.compiler.is_compiling():
            self._detached[detached] = True

    def add(self, gathered: Any, matrix: Any) -> None:
        """Keep a row that came from another rank."""
        if not isinstance(matrix, torch.Tensor) or matrix.dim() < 2 or not matrix.is_floating_point():
            return
        from_graph = matrix.grad_fn is not None or matrix in self._detached
        if from_graph and len(matrix) and not _in_autograd_function():
            parts = gathered.split(len(matrix)) if isinstance(gathered, torch.Tensor) else gathered
            other = parts[(dist.get_rank() + 1) % len(parts)]
            self._rows.append((other.detach().flatten(0, -2)[0].clone(), place()))

    def add_sum(self, tensor: Any) -> None:
        """Keep the node of a tensor that was summed over the ranks."""
        if isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.grad_fn and not _in_autograd_function():
            self._sums.append((tensor.grad_fn, place()))

    def used_by(self, loss: torch.Tensor) -> dict[str, Any] | None:
        """Return call and place of a gather or a sum, and whether the graph of ``loss`` has its result.

        None if there was none. What was gathered before is forgotten.
        """
        (rows, sums), self._rows, self._sums = (self._rows, self._sums), [], []
        uses = [{"call": "all_gather", "in_loss": saves_row(loss, row), "place": source} for row, source in rows]
        graph = {id(node) for node in nodes(loss)} if sums else set()
        uses += [{"call": "all_reduce", "in_loss": True, "place": source} for node, source in sums if id(node) in graph]
        return max(uses, key=itemgetter("in_loss"), default=None)


def _in_autograd_function() -> bool:
    codes = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return any(code.co_name == "apply" and code.co_filename == torch.autograd.function.__file__ for code in codes)


Record: TypeAlias = Callable[[tuple[Any, ...], Any], None]
"""Function that receives the arguments of a call and its result."""


class Calls:
    """Records calls of functions by name; a call inside another recorded call is not recorded."""

    def __init__(self, recorder: Recorder, copies: GatheredCopies) -> None:
        self._recorder, self._copies = recorder, copies
        self._inside = False
        self._scaled = False
        self._schedulers: dict[int, tuple[int, Any]] = {}  # by id; with itself, so that no id is used twice
        if recorder.options.timeout:
            recorder.replace_everywhere((dist, distributed_c10d), "init_process_group", self._with_timeout)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            recorder.replace_everywhere((clip_grad, torch.nn.utils), name, self._recorded(self._note_clip))
        recorder.replace(lr_scheduler.LRScheduler, "_initial_step", self._unrecorded())
        for name in ("LRScheduler", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler"):
            recorder.replace(getattr(lr_scheduler, name), "step", self._recorded(self._note_scheduler))
        for name, record in (("scale", self._note_scaled), ("unscale_", self._unscaled), ("update", self._note_scaler)):
            recorder.replace(torch.amp.GradScaler, name, self._recorded(record))
        for name in COLLECTIVES:
            if hasattr(dist, name):
                record = functools.partial(self._note_collective, name)
                recorder.replace_everywhere((dist, distributed_c10d), name, self._recorded(record))
        recorder.replace(Join, "__enter__", self._recorded(lambda *call: recorder.note("join", place=place())))

    @contextmanager
    def _unrecorded(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def _recorded(self, record: Record) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator: after a call, ``record`` receives the arguments and the result."""

        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def watched(*args: Any, **kwargs: Any) -> Any:
                if self._inside:
                    return function(*args, **kwargs)
                with self._unrecorded():
                    result = function(*args, **kwargs)
                if self._recorder.active:
                    with self._recorder.watching():
                        record((*args, *kwargs.values()), result)
                return result

            return watched

        return make

    def _with_timeout(self, init: Callable[..., Any]) -> Callable[..., Any]:
        """Set the default timeout of process groups, so that a hanging script ends and its launch can diagnose it."""
        timeout = timedelta(seconds=self._recorder.options.timeout)

        @functools.wraps(init)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            arguments = inspect.signature(init).bind_partial(*args, **kwargs).arguments
            return init(*args, **kwargs, **({} if arguments.get("timeout") is not None else {"timeout": timeout}))

        return init_process_group

    def _note_clip(self, arguments: tuple[Any, ...], norm: Any) -> None:
        shared = hasattr(norm, "to_local")  # of sharded gradients: a DTensor, of which each rank has a part
        value = None if shared or norm is None else float(norm)
        most = next((float(each) for each in arguments[1:] if isinstance(each, int | float)), None)
        self._recorder.note("clip", norm=value, most=most, scaled=self._scaled, place=place())

    def _note_scheduler(self, arguments: tuple[Any, ...], result: Any) -> None:
        number, _ = self._schedulers.setdefault(id(arguments[0]), (len(self._schedulers), arguments[0]))
        caller = sys._getframe(2).f_globals.get("__name__")  # Accelerate steps a scheduler once for each rank
        self._recorder.note(
            "scheduler",
            scheduler=number,
            name=type(arguments[0]).__name__,
            of=id(getattr(arguments[0], "optimizer", None)),
            by_accelerate=caller == "accelerate.scheduler",
            place=place(),
        )

    def _note_scaled(self, arguments: tuple[Any, ...], result: Any) -> None:
        self._scaled = arguments[0].is_enabled() and arguments[0].get_scale() != 1
        if arguments[0].is_enabled():
            self._recorder.note("scaled", factor=arguments[0].get_scale())

    def _unscaled(self, arguments: tuple[Any, ...], result: Any) -> None:
        self._scaled = False

    def _note_scaler(self, arguments: tuple[Any, ...], result: Any) -> None:
        self._scaled = False
        if arguments[0].is_enabled():
            self._recorder.note("scaler", scale=arguments[0].get_scale(), place=place())

    def _note_collective(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        group = next((each for each in arguments if isinstance(each, dist.ProcessGroup)), dist.group.WORLD)
        if group is not dist.group.WORLD:
            return
        tensors = list(tensors_in(arguments))
        first = tensors[-1 if name in ("all_gather", "gather") else 0] if tensors else None
        self._recorder.collectives += name != "barrier"
        self._recorder.note(
            "collective",
            name=name,
            shape=None if first is None else list(first.shape),
            dtype=None if first is None else str(first.dtype).removeprefix("torch."),
            place=place(),
        )
        if name in ("all_gather", "all_gather_into_tensor") and result is None:
            self._copies.add(arguments[0], arguments[1])
        if name == "all_reduce":
            self._copies.add_sum(arguments[0])
