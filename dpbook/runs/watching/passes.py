"""Hooks on forward and backward: the state that a forward begins with, the losses, and whether gradients are averaged.

A replay also needs each rank's own gradients before the average.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from dpbook.runs.watching.divisors import Reduced, reductions
from dpbook.runs.watching.hashing import digests, random_state, rows
from dpbook.runs.watching.journal import Recorder, place
from dpbook.runs.watching.loaders import Loaders
from dpbook.runs.watching.local_gradients import LocalGradients
from dpbook.runs.watching.modules import Owners, averages, syncs

_MOST_TENSORS = 8
_COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a module."""


class Forwards:
    """Watches the calls of the modules that it is told of."""

    def __init__(self, recorder: Recorder, loaders: Loaders) -> None:
        self.wrappers: dict[int, nn.Module] = {}
        self._watched: dict[int, weakref.ref[nn.Module]] = {}
        self._recorder, self._loaders = recorder, loaders
        self._inside = threading.local()
        recorder.replace(nn.Module, "__call__", self._called)
        recorder.replace(nn.parallel.DistributedDataParallel, "__init__", self._wraps)

    def _wraps(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(wrapper: nn.Module, *args: Any, **kwargs: Any) -> None:
            init(wrapper, *args, **kwargs)
            self.wrappers[id(wrapper)] = wrapper

        return __init__

    def watch(self, found: Owners) -> None:
        """Watch the roots, or what compiles them (it calls none of their methods), and know their wrappers."""
        compiled = [each for each in found.wrappers if type(each).__name__ == "OptimizedModule"]
        for root in (*found.roots, *compiled):
            self._watched.setdefault(id(root), weakref.ref(root))
        for wrapper in found.wrappers:
            if averages(wrapper):
                self.wrappers[id(wrapper)] = wrapper

    def sync(self) -> bool | None:
        """Whether a backward would be averaged now; None where no wrapper is known."""
        return all(syncs(wrapper) for wrapper in self.wrappers.values()) if self.wrappers else None

    def _called(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            if id(module) in self.wrappers:
                return self._through(call, module, args, kwargs)
            if id(module) not in self._watched:
                return call(module, *args, **kwargs)
            return self._watch_call(call, module, args, kwargs)

        return __call__

    def _through(self, call: Callable[..., Any], wrapper: nn.Module, args: Any, kwargs: Any) -> Any:
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
        seen: dict[str, Any] | None = None
        with self._recorder.watching():
            seen = self._seen(module, [args, kwargs])
        self._inside.yes = True
        try:
            return call(module, *args, **kwargs)
        finally:
            self._inside.yes = False
            if seen is not None:
                with self._recorder.watching():
                    drawn = random_state(_device(module)) != seen["random"]
                    self._recorder.note("forward", drawn=drawn, **seen)

    def _seen(self, module: nn.Module, given: Any) -> dict[str, Any]:
        tensors = list(tensors_of(given))[:_MOST_TENSORS]
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
    """The tensors in lists, tuples and dictionaries of any depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)


def _device(module: nn.Module) -> torch.device:
    held: Iterable[torch.Tensor] = module.parameters()
    return next((each.device for each in held), torch.device("cpu"))


class Backwards:
    """Watches every backward of the script; those inside another (re-entrant checkpoints) are part of it."""

    def __init__(self, recorder: Recorder, forwards: Forwards, gradients: LocalGradients) -> None:
        self._recorder, self._forwards, self._gradients = recorder, forwards, gradients
        self._inside = False
        recorder.replace(torch.autograd, "backward", self._watched)

    def _watched(self, backward: Callable[..., Any]) -> Callable[..., Any]:
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

    def _note(self, tensors: Any, given: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        plain = len(roots) == 1 and roots[0].numel() == 1 and not any(each is not None for each in given)
        found = _readable(roots[0]) if plain else None
        value = float(roots[0].detach()) if plain else None
        losses = None if found is None else [asdict(each) for each in found]
        where = place()
        self._gradients.begin(found, f"{where[0]}:{where[1]}" if where else "")
        self._recorder.note("backward", losses=losses, value=value, sync=self._forwards.sync(), place=where)


def _readable(loss: torch.Tensor) -> list[Reduced] | None:
    try:
        return reductions(loss)
    except (RuntimeError, AttributeError):  # a graph whose tensors are packed away, or that names them otherwise
        return None
