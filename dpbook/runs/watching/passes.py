"""Hooks on forward and backward: the state at the beginning of a forward, the losses, the wrapper's flags."""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from dpbook.runs.watching.divisors import Reduction, reductions
from dpbook.runs.watching.hashing import digests, random_state, rows
from dpbook.runs.watching.journal import Recorder, place
from dpbook.runs.watching.loaders import Loaders
from dpbook.runs.watching.local_gradients import LocalGradients
from dpbook.runs.watching.modules import Owners, averages, syncs

_MAX_TENSORS = 8
_COMPILED = "_orig_mod."
"""Prefix that torch.compile adds to the names in a module."""


class Forwards:
    """Records the calls of the modules that are registered with `watch`."""

    def __init__(self, recorder: Recorder, loaders: Loaders) -> None:
        self.wrappers: dict[int, nn.Module] = {}
        self._watched: dict[int, weakref.ref[nn.Module]] = {}
        self._recorder, self._loaders = recorder, loaders
        self._inside = threading.local()
        recorder.replace(nn.Module, "__call__", self._wrap_call)
        recorder.replace(nn.parallel.DistributedDataParallel, "__init__", self._wrap_init)

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(wrapper: nn.Module, *args: Any, **kwargs: Any) -> None:
            init(wrapper, *args, **kwargs)
            self.wrappers[id(wrapper)] = wrapper

        return __init__

    def watch(self, owners: Owners) -> None:
        """Register modules and their wrappers; a compiled module never calls its original."""
        compiled = [each for each in owners.wrappers if type(each).__name__ == "OptimizedModule"]
        for root in (*owners.roots, *compiled):
            self._watched.setdefault(id(root), weakref.ref(root))
        for wrapper in owners.wrappers:
            if averages(wrapper):
                self.wrappers[id(wrapper)] = wrapper

    def sync(self) -> bool | None:
        """Whether a backward would be averaged now; None if no wrapper is known."""
        return all(syncs(wrapper) for wrapper in self.wrappers.values()) if self.wrappers else None

    def _wrap_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            if id(module) in self.wrappers:
                return self._call_wrapper(call, module, args, kwargs)
            if id(module) not in self._watched:
                return call(module, *args, **kwargs)
            return self._watch_call(call, module, args, kwargs)

        return __call__

    def _call_wrapper(self, call: Callable[..., Any], wrapper: nn.Module, args: Any, kwargs: Any) -> Any:
        self._inside.wrapper = True
        try:
            return call(wrapper, *args, **kwargs)
        finally:
            self._inside.wrapper = False

    def _watch_call(
        self, call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = self._watched[id(module)]() is module and not getattr(self._inside, "yes", False)
        if not (known and self._recorder.active and torch.is_grad_enabled() and module.training):
            return call(module, *args, **kwargs)
        state: dict[str, Any] | None = None
        with self._recorder.watching():
            state = self._state(module, [args, kwargs])
        self._inside.yes = True
        try:
            return call(module, *args, **kwargs)
        finally:
            self._inside.yes = False
            if state is not None:
                with self._recorder.watching():
                    drawn = random_state(_device(module)) != state["random"]
                    self._recorder.note("forward", drawn=drawn, **state)

    def _state(self, module: nn.Module, arguments: Any) -> dict[str, Any]:
        tensors = list(tensors_of(arguments))[:_MAX_TENSORS]
        finite = all(bool(torch.isfinite(each).all()) for each in tensors if each.is_floating_point())
        return {
            "random": random_state(_device(module)),
            "loader": self._loaders.current,
            "rows": rows(tensors),
            "buffers": digests({name.replace(_COMPILED, ""): each for name, each in module.named_buffers()}),
            "sync": self.sync(),
            "wrapped": getattr(self._inside, "wrapper", False),
            "finite": finite,
            "place": place(),
        }


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)


def _device(module: nn.Module) -> torch.device:
    parameters: Iterable[torch.Tensor] = module.parameters()
    return next((each.device for each in parameters), torch.device("cpu"))


class Backwards:
    """Records every backward of the script; a backward inside another (a re-entrant checkpoint) is part of it."""

    def __init__(self, recorder: Recorder, forwards: Forwards, gradients: LocalGradients) -> None:
        self._recorder, self._forwards, self._gradients = recorder, forwards, gradients
        self._inside = False
        recorder.replace(torch.autograd, "backward", self._wrap_backward)

    def _wrap_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def watch_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._recorder.active:
                return backward(tensors, *args, **kwargs)
            with self._recorder.watching():
                self._note(tensors, args[:1] or [kwargs.get("grad_tensors")])
            self._inside = True
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._inside = False

        return watch_backward

    def _note(self, tensors: Any, arguments: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        plain = len(roots) == 1 and roots[0].numel() == 1 and not any(each is not None for each in arguments)
        reductions_of_loss = _readable(roots[0]) if plain else None
        value = float(roots[0].detach()) if plain else None
        losses = None if reductions_of_loss is None else [asdict(each) for each in reductions_of_loss]
        source = place()
        self._gradients.begin(reductions_of_loss, f"{source[0]}:{source[1]}" if source else "")
        self._recorder.note("backward", losses=losses, value=value, sync=self._forwards.sync(), place=source)


def _readable(loss: torch.Tensor) -> list[Reduction] | None:
    try:
        return reductions(loss)
    except (RuntimeError, AttributeError):  # saved tensors may be packed by hooks, or have other names
        return None
