"""Hooks on a training step: wrappers, forwards, backwards and optimizers, installed once for all listeners."""

import functools
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dpbook.runs.watching.journal import Recorder

try:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
except ImportError:  # a private class, which another version of torch may lack
    FSDPParamGroup = None

T = TypeVar("T")


class TrainingListener:
    """Base of the classes that `TrainingHooks` calls at each event. Its methods do nothing."""

    def optimizer_created(self, optimizer: Optimizer, owners: "Owners") -> None:
        """An optimizer was created; ``owners`` are the modules that have its parameters now."""

    def forward_begins(self, module: nn.Module, arguments: list[Any]) -> None:
        """The outermost module with trained parameters is called, with gradients enabled."""

    def forward_ends(self, module: nn.Module) -> None:
        """The call of `forward_begins` returned or raised an error."""

    def backward_begins(self, tensors: Any, grad_tensors: Any) -> None:
        """The script differentiates ``tensors``."""

    def backward_ends(self) -> None:
        """The call of `backward_begins` returned or raised an error."""

    def step_begins(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step with the gradients that its parameters have now."""

    def step_ends(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""


class TrainingHooks:
    """Hooks on the training steps of a process, until ``recorder`` closes.

    A forward inside another, and a forward or backward inside a backward (a re-entrant checkpoint), are part of it.

    Attributes:
        listeners: objects whose methods are called at each event.
        wrappers: wrappers that average gradients over ranks, by id.
        in_backward: whether a backward runs: an optimizer may step in it, as soon as a gradient is complete.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.wrappers: dict[int, nn.Module] = {}
        self._recorder = recorder
        self.listeners: list[TrainingListener] = []
        self._watched: dict[int, weakref.ref[nn.Module]] = {}
        self._forward = threading.local()
        self.in_backward = False
        self._ready: set[int] = set()  # optimizers that step now, whose gradients are ready
        recorder.after(nn.parallel.DistributedDataParallel, "__init__", self._wrapper_created)
        recorder.replace(nn.Module, "__call__", self._wrap_call)
        recorder.replace(torch.autograd, "backward", self._wrap_backward)
        recorder.after(Optimizer, "__init__", self._optimizer_created)
        recorder.on_close(register_optimizer_step_pre_hook(self._step_begins).remove)
        recorder.on_close(register_optimizer_step_post_hook(self._step_ends).remove)

    @property
    def in_wrapper(self) -> bool:
        """Whether a wrapper is called now."""
        return getattr(self._forward, "wrapper", False)

    @property
    def through_wrapper(self) -> bool:
        """Whether the current forward goes through a wrapper, around it or inside it."""
        return self.in_wrapper or getattr(self._forward, "inner", False)

    def sync(self) -> bool | None:
        """Whether a backward would be averaged now; None if no wrapper is known."""
        return all(map(syncs, self.wrappers.values())) if self.wrappers else None

    def watch(self, optimizer: Optimizer, modules: Sequence[nn.Module] | None = None) -> "Owners":
        """Watch those of ``modules`` (default: all in the process) that have the optimizer's parameters; return them.

        It is called again before the first step, because a script may wrap its model after it creates the optimizer.
        """
        found = owners(parameters_of(optimizer), _instances(nn.Module) if modules is None else modules)
        # a compiled module never calls the module that it was made from
        compiled = [each for each in found.wrappers if type(each).__name__ == "OptimizedModule"]
        for root in (*found.roots, *compiled):
            self._watched.setdefault(id(root), weakref.ref(root))
        self.wrappers.update({id(wrapper): wrapper for wrapper in found.wrappers if averages(wrapper)})
        return found

    def watch_existing(self) -> None:
        """Watch the optimizers that the script has created already, and the wrappers around what they update."""
        if _instances(Optimizer):
            gc.collect()  # an earlier training in this process may have left its model
            modules = _instances(nn.Module)
            for optimizer in _instances(Optimizer):
                self._watch_created(optimizer, modules)

    def _wrapper_created(self, result: None, wrapper: nn.Module, *args: Any, **kwargs: Any) -> None:
        self.wrappers[id(wrapper)] = wrapper

    def _optimizer_created(self, result: None, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        self._watch_created(optimizer)

    def _watch_created(self, optimizer: Optimizer, modules: Sequence[nn.Module] | None = None) -> None:
        with self._recorder.watching():
            found = self.watch(optimizer, modules)
            for listener in self.listeners:
                listener.optimizer_created(optimizer, found)

    def _wrap_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            if id(module) in self.wrappers:
                self._forward.wrapper = self._forward.inner = True
                try:
                    return call(module, *args, **kwargs)
                finally:
                    self._forward.wrapper = False
            outermost = not self.in_backward and not getattr(self._forward, "running", False)
            watched = self._watched.get(id(module))
            if watched is None or not outermost or not torch.is_grad_enabled() or watched() is not module:
                return call(module, *args, **kwargs)
            for listener in self.listeners:
                listener.forward_begins(module, [args, kwargs])
            self._forward.inner = id(getattr(module, "_orig_mod", None)) in self.wrappers  # compiled: not called
            self._forward.running = True
            try:
                return call(module, *args, **kwargs)
            finally:
                self._forward.running = False
                for listener in self.listeners:
                    listener.forward_ends(module)

        return __call__

    def _wrap_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def watch_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self.in_backward:
                return backward(tensors, *args, **kwargs)
            for listener in self.listeners:
                listener.backward_begins(tensors, args[0] if args else kwargs.get("grad_tensors"))
            self.in_backward = True
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self.in_backward = False
                for listener in self.listeners:
                    listener.backward_ends()

        return watch_backward

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Call the listeners; a closure that computes the gradients inside the step is called before them."""
        by_position = len(args) > 1
        closure = args[1] if by_position else kwargs.get("closure")
        self._ready.discard(id(optimizer))
        if not callable(closure):
            self._gradients_are_ready(optimizer)
            return None

        @functools.wraps(closure)
        def watched(*arguments: Any, **options: Any) -> Any:
            result = closure(*arguments, **options)
            self._gradients_are_ready(optimizer)
            return result

        return ((args[0], watched, *args[2:]), kwargs) if by_position else (args, kwargs | {"closure": watched})

    def _gradients_are_ready(self, optimizer: Optimizer) -> None:
        """Call the listeners once a step: an optimizer such as L-BFGS calls its closure several times."""
        if id(optimizer) not in self._ready:
            self._ready.add(id(optimizer))
            for listener in self.listeners:
                listener.step_begins(optimizer)

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._gradients_are_ready(optimizer)  # unless the optimizer has not called its closure
        for listener in self.listeners:
            listener.step_ends(optimizer)


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return all parameters of an optimizer, over its groups."""
    return list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))


@dataclass(frozen=True)
class Owners:
    """Modules that have the parameters of an optimizer.

    Attributes:
        roots: outermost modules with some of the parameters, without wrappers.
        wrappers: wrappers around these modules.
        names: name of each parameter by its id.
    """

    roots: tuple[nn.Module, ...]
    wrappers: tuple[nn.Module, ...]
    names: dict[int, str]


def _instances(of: type[T]) -> list[T]:
    """Return the process's objects of a class; this takes some hundredths of a second."""
    return [each for each in gc.get_objects() if issubclass(type(each), of)]


def owners(parameters: Sequence[torch.Tensor], modules: Sequence[nn.Module]) -> Owners:
    """Search modules for these parameters."""
    wanted = {id(parameter) for parameter in parameters}
    holding = [each for each in modules if "_parameters" in vars(each) and wanted & _ids(each)]
    wrappers = tuple(each for each in holding if averages(each) or type(each).__name__ in FURTHER_WRAPPERS)
    bare = [each for each in holding if not any(each is wrapper for wrapper in wrappers)]
    inside = {id(child) for each in bare for child in each.modules() if child is not each}
    roots = tuple(each for each in bare if id(each) not in inside)
    return Owners(roots, wrappers, _names(roots, parameters))


def _ids(module: nn.Module) -> set[int]:
    return set(map(id, module.parameters()))


FURTHER_WRAPPERS = ("OptimizedModule", "DataParallel")
"""Classes that only change how the module inside them runs, beside those that average."""


def averages(module: nn.Module) -> bool:
    """Whether a module is a wrapper that averages gradients over ranks."""
    ours = sys.modules.get("dpbook.ddp.wrappers")
    return isinstance(module, (nn.parallel.DistributedDataParallel, *([ours.DDP] if ours else [])))


def syncs(wrapper: nn.Module) -> bool:
    """Whether the next backward through the wrapper averages over the ranks."""
    if isinstance(wrapper, nn.parallel.DistributedDataParallel):
        return bool(wrapper.require_backward_grad_sync)
    return bool(wrapper._reducer.enabled)


def ddp_all_reduces(wrapper: nn.Module) -> dict[str, float] | None:
    """Return torch's own record of DDP's last backward, or None for another wrapper.

    ``all_reduces`` is their number, ``begun`` the share of backward after which the first one began.
    """
    if not isinstance(wrapper, nn.parallel.DistributedDataParallel):
        return None
    known: Any = wrapper._get_ddp_logging_data()
    times = ("backward_comm_time_start", "backward_compute_time_start", "backward_compute_time")
    begun, backward, took = (known.get(time, 0) for time in times)
    if not begun or not backward or not took:
        return None
    return {"all_reduces": known["num_buckets_reduced"], "begun": min(1.0, max(0.0, (begun - backward) / took))}


def replicas_of(wrapper: nn.Module) -> int:
    """Return the number of ranks over which a wrapper averages."""
    group: Any = getattr(wrapper, "process_group", None) or getattr(wrapper, "group", None)
    return int(dist.get_world_size(group))


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether torch's `fully_shard` or its first FSDP was applied to a module or to one inside it."""
    names = {base.__name__ for each in module.modules() for base in type(each).__mro__}
    return not names.isdisjoint(("FSDPModule", "FullyShardedDataParallel"))


def has_own_data(parameter: torch.Tensor, world: int) -> bool:
    """Whether sharding this parameter leaves each rank with examples of its own, if `fully_shard` sharded it.

    With tensor parallelism besides, it is sharded over two dimensions of the mesh, and some ranks read the same.
    """
    mesh: Any = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return True
    placements: Any = getattr(parameter, "placements", ())
    return bool(mesh.size() == world and sum(each.is_shard() for each in placements) < 2)


def _names(roots: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> dict[int, str]:
    """Return the parameters' names in their modules, with the class in front if two modules share a name."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    for module in sorted(roots, key=lambda each: min(places[known] for known in _ids(each) & places.keys())):
        kind = type(module).__name__
        for name, parameter in module.named_parameters():
            if id(parameter) not in names:
                numbered = (f"{kind} {k}.{name}" for k in itertools.count(2))
                spellings = itertools.chain([name, f"{kind}.{name}"], numbered)
                unique = next(each for each in spellings if each not in taken)
                taken.add(unique)
                names[id(parameter)] = unique
    for number, parameter in enumerate(parameters):
        names.setdefault(id(parameter), f"parameter {number} of shape {tuple(parameter.shape)}")
    return names
