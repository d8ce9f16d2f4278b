"""What a model is given: the examples, the random state and the buffers that it begins a forward with."""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from dpbook.runs.watching.hashing import digests, random_state, rows
from dpbook.runs.watching.loaders import Loaders
from dpbook.runs.watching.modules import Owners, averages, syncs
from dpbook.runs.watching.recorder import Recorder, place

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
