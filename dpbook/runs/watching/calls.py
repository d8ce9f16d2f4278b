"""Hooks on functions that a script calls: clipping, schedulers, gradient scalers, collectives."""

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
    """Records calls of functions by name; a call inside another recorded call is not recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._inside = False
        self._scaled = False
        self._schedulers: list[Any] = []
        if recorder.options.timeout:
            self._set_timeout(timedelta(seconds=recorder.options.timeout))
        self._clipping()
        self._scheduling()
        self._scaling()
        for name in COLLECTIVES:
            if hasattr(dist, name):
                self._collective(name)
        recorder.replace(
            Join, "__enter__", self._recorded(lambda arguments, result: recorder.note("join", place=place()))
        )

    def _recorded(
        self, record: Callable[[tuple[Any, ...], Any], None]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator: after a call, ``record`` receives the arguments and the result."""

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
                        record((*args, *kwargs.values()), result)
                return result

            return watched

        return make

    def _set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of process groups, so that a hanging script ends and its launch can diagnose it."""

        def with_timeout(init: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(init)
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                arguments = inspect.signature(init).bind_partial(*args, **kwargs).arguments
                return init(*args, **kwargs, **({} if arguments.get("timeout") is not None else {"timeout": timeout}))

            return init_process_group

        self._everywhere((dist, distributed_c10d), "init_process_group", with_timeout)

    def _clipping(self) -> None:
        def clipped(arguments: tuple[Any, ...], norm: Any) -> None:
            shared = hasattr(norm, "to_local")  # of sharded gradients: a DTensor, of which each rank has a part
            value = None if shared or norm is None else float(norm)
            most = next((float(each) for each in arguments[1:] if isinstance(each, int | float)), None)
            self._recorder.note("clip", norm=value, most=most, scaled=self._scaled, place=place())

        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._everywhere((clip_grad, torch.nn.utils), name, self._recorded(clipped))

    def _scheduling(self) -> None:
        def stepped(arguments: tuple[Any, ...], result: Any) -> None:
            known = [each for each, scheduler in enumerate(self._schedulers) if scheduler is arguments[0]]
            if not known:
                self._schedulers.append(arguments[0])
                known = [len(self._schedulers) - 1]
            self._recorder.note("scheduler", scheduler=known[0], name=type(arguments[0]).__name__, place=place())

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
            self._recorder.replace(getattr(lr_scheduler, name), "step", self._recorded(stepped))

    def _scaling(self) -> None:
        def scaled(arguments: tuple[Any, ...], result: Any) -> None:
            self._scaled = arguments[0].is_enabled() and arguments[0].get_scale() != 1
            if arguments[0].is_enabled():
                self._recorder.note("scaled", factor=arguments[0].get_scale())

        def unscaled(arguments: tuple[Any, ...], result: Any) -> None:
            self._scaled = False

        def updated(arguments: tuple[Any, ...], result: Any) -> None:
            self._scaled = False
            if arguments[0].is_enabled():
                self._recorder.note("scaler", scale=arguments[0].get_scale(), place=place())

        for name, record in (("scale", scaled), ("unscale_", unscaled), ("update", updated)):
            self._recorder.replace(torch.amp.GradScaler, name, self._recorded(record))

    def _collective(self, name: str) -> None:
        def called(arguments: tuple[Any, ...], result: Any) -> None:
            group = next((each for each in arguments if isinstance(each, dist.ProcessGroup)), dist.group.WORLD)
            if group is not dist.group.WORLD:
                return
            tensors = list(tensors_of(list(arguments)))
            first = tensors[-1 if name in ("all_gather", "gather") else 0] if tensors else None
            self._recorder.note(
                "collective",
                name=name,
                shape=None if first is None else list(first.shape),
                dtype=None if first is None else str(first.dtype).removeprefix("torch."),
                graded=torch.is_grad_enabled()
                and any(each.requires_grad for each in tensors),  # gradients are off inside an autograd.Function
                place=place(),
            )

        self._everywhere((dist, distributed_c10d), name, self._recorded(called))

    def _everywhere(self, owners: tuple[Any, ...], name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function that several modules export by one new function."""
        replacement = make(getattr(owners[0], name))
        for owner in owners:
            self._recorder.replace(owner, name, lambda old: replacement)
