"""What else the script calls: clipping, schedulers, scalers, and collectives of its own."""

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler

from dpbook.runs.watching.journal import Recorder, place
from dpbook.runs.watching.passes import tensors_of

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "all_gather_object",
    "broadcast_object_list", "gather_object", "all_reduce_coalesced",
)  # fmt: skip


class Calls:
    """Watches functions that scripts call by name; one inside another is not told."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._inside = False
        self._scaled = False
        self._schedulers: list[Any] = []
        if recorder.wanted.timeout:
            self._patience(timedelta(seconds=recorder.wanted.timeout))
        self._clipping()
        self._scheduling()
        self._scaling()
        for name in COLLECTIVES:
            if hasattr(dist, name):
                self._collective(name)
        recorder.replace(Join, "__enter__", self._told(lambda given, result: recorder.note("join", place=place())))

    def _told(self, tell: Callable[[tuple[Any, ...], Any], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make of a function one that also tells its arguments and its result, when it has returned."""

        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def watched(*args: Any, **kwargs: Any) -> Any:
                if self._inside:
                    return function(*args, **kwargs)
                self._inside = True
                try:
                    result = function(*args, **kwargs)
                finally:
                    self._inside = False
                if self._recorder.active:
                    with self._recorder.watching():
                        tell((*args, *kwargs.values()), result)
                return result

            return watched

        return make

    def _patience(self, timeout: timedelta) -> None:
        """A script whose ranks wait for each other for ever ends, and its launch can tell why."""

        def patient(init: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(init)
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                given = inspect.signature(init).bind_partial(*args, **kwargs).arguments
                return init(*args, **kwargs, **({} if given.get("timeout") is not None else {"timeout": timeout}))

            return init_process_group

        self._everywhere((dist, distributed_c10d), "init_process_group", patient)

    def _clipping(self) -> None:
        def clipped(given: tuple[Any, ...], norm: Any) -> None:
            shared = hasattr(norm, "to_local")  # over sharded gradients: one number, whose parts the ranks have
            value = None if shared or norm is None else float(norm)
            most = next((float(each) for each in given[1:] if isinstance(each, int | float)), None)
            self._recorder.note("clip", norm=value, most=most, scaled=self._scaled, place=place())

        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._everywhere((clip_grad, torch.nn.utils), name, self._told(clipped))

    def _scheduling(self) -> None:
        def stepped(given: tuple[Any, ...], result: Any) -> None:
            known = [each for each, scheduler in enumerate(self._schedulers) if scheduler is given[0]]
            if not known:
                self._schedulers.append(given[0])
                known = [len(self._schedulers) - 1]
            self._recorder.note("scheduler", scheduler=known[0], name=type(given[0]).__name__, place=place())

        def quietly(initial: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(initial)
            def _initial_step(*args: Any, **kwargs: Any) -> Any:
                before, self._inside = self._inside, True
                try:
                    return initial(*args, **kwargs)
                finally:
                    self._inside = before

            return _initial_step

        self._recorder.replace(lr_scheduler.LRScheduler, "_initial_step", quietly)
        for name in ("LRScheduler", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler"):
            self._recorder.replace(getattr(lr_scheduler, name), "step", self._told(stepped))

    def _scaling(self) -> None:
        def scaled(given: tuple[Any, ...], result: Any) -> None:
            self._scaled = given[0].is_enabled() and given[0].get_scale() != 1
            if given[0].is_enabled():
                self._recorder.note("scaled", factor=given[0].get_scale())

        def unscaled(given: tuple[Any, ...], result: Any) -> None:
            self._scaled = False

        def updated(given: tuple[Any, ...], result: Any) -> None:
            self._scaled = False
            if given[0].is_enabled():
                self._recorder.note("scaler", scale=given[0].get_scale(), place=place())

        for name, tell in (("scale", scaled), ("unscale_", unscaled), ("update", updated)):
            self._recorder.replace(torch.amp.GradScaler, name, self._told(tell))

    def _collective(self, name: str) -> None:
        def called(given: tuple[Any, ...], result: Any) -> None:
            group = next((each for each in given if isinstance(each, dist.ProcessGroup)), dist.group.WORLD)
            if group is not dist.group.WORLD:
                return
            tensors = list(tensors_of(list(given)))
            first = tensors[-1 if name in ("all_gather", "gather") else 0] if tensors else None
            self._recorder.note(
                "collective",
                name=name,
                shape=None if first is None else list(first.shape),
                dtype=None if first is None else str(first.dtype).removeprefix("torch."),
                graded=torch.is_grad_enabled() and any(each.requires_grad for each in tensors),  # not in a Function
                place=place(),
            )

        self._everywhere((dist, distributed_c10d), name, self._told(called))

    def _everywhere(self, owners: tuple[Any, ...], name: str, make: Callable[[Any], Any]) -> None:
        """One function that is known in several modules."""
        made = make(getattr(owners[0], name))
        for owner in owners:
            self._recorder.replace(owner, name, lambda old: made)
