"""Weights saved for backward: they are gathered when backward reads them, by whichever path it reaches them.

Backward usually comes to a unit through its output, and the unit has its weights then. A loss of something inside of a
unit, such as an auxiliary loss of a layer, reaches them by another path.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from dpbook.core import InvalidArgument
from dpbook.ddp.reducer import tensors_in
from dpbook.ddp.sharded.communication import Prefetching, Reducing
from dpbook.ddp.sharded.row import Row
from dpbook.ddp.sharded.unit import Unit


@dataclass(frozen=True)
class _Weight:
    """A weight, or a view of one, of a row that had these ``versions`` in forward."""

    tensor: torch.Tensor
    unit: Unit
    row: Row
    versions: tuple[int, ...]


class SavedWeights:
    """Weights that forward saves for backward within `watched`; ``reach`` is called with a unit to gather."""

    def __init__(self, units: Sequence[Unit], reach: Callable[[Unit], None]) -> None:
        self.reach = reach
        self._owners = {row.whole.untyped_storage()._cdata: (unit, row) for unit in units for row in unit.rows}

    def watched(self) -> AbstractContextManager[object]:
        """Return a context manager for a forward whose saved weights are gathered again in backward.

        It has no effect inside other hooks on saved tensors; such hooks inside the forward replace it.
        """
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            return nullcontext()
        watching: AbstractContextManager[object] = torch.autograd.graph.saved_tensors_hooks(self._save, self._give)
        return watching

    def _save(self, tensor: torch.Tensor) -> "torch.Tensor | _Weight":
        strided = tensor.layout == torch.strided
        owner = self._owners.get(tensor.untyped_storage()._cdata) if strided else None
        return tensor if owner is None else _Weight(tensor.detach(), *owner, owner[1].versions)

    def _give(self, saved: "torch.Tensor | _Weight") -> torch.Tensor:
        if not isinstance(saved, _Weight):
            return saved
        if not saved.row.alive or saved.row.handle is not None:
            saved.unit.check_versions([saved.row], [saved.versions])
            self.reach(saved.unit)
        return saved.tensor


class Passes:
    """Hooks on the modules of ``units``, of which the first is around all others.

    ``dtype``: of the inputs to compute with, None for their own. ``reshard``: whether weights are freed after forward;
    those of the first unit stay in any case, backward begins with them.
    """

    def __init__(
        self, units: list[Unit], prefetching: Prefetching, reducing: Reducing, dtype: torch.dtype | None, reshard: bool
    ) -> None:
        self.units, self.prefetching, self.reducing = units, prefetching, reducing
        self.dtype, self.reshard = dtype, reshard
        self._forward_runs = self._backward_runs = False
        self._saved = SavedWeights(units, self._come_otherwise)
        reducing.begin = self._begin_backward
        self._hooks: list[RemovableHandle] = []
        for unit in units:
            entering, leaving = partial(self._enter, unit), partial(self._leave, unit)
            self._hooks.append(unit.module.register_forward_pre_hook(entering, prepend=True, with_kwargs=True))
            self._hooks.append(unit.module.register_forward_hook(leaving))

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Make the units' whole weights available within the block, and show the shards again after it."""
        self.forget()
        self._forward_runs = True
        self.prefetching.begin()
        for unit in self.units:
            unit.hide()
        try:
            with self._saved.watched():
                yield
        finally:
            self._forward_runs = False
            for unit in self.units:
                if not torch.is_grad_enabled():
                    unit.free()
                unit.show_shards()

    def forget(self) -> None:
        """Clean up after a forward without backward, or a backward that raised."""
        if self._backward_runs:
            self._backward_runs = False
            self.reducing.forget()
        self._free(self.units)

    def recover(self) -> None:
        """Show the modules' shards again after a backward that raised and therefore never finished."""
        if self._backward_runs and not in_backward():
            self.forget()

    def remove(self) -> None:
        """Remove the hooks from the modules."""
        self.forget()
        for hook in self._hooks:
            hook.remove()

    def _enter(self, unit: Unit, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Gather the whole weights of a unit before its forward."""
        if in_backward():
            self._wait_for_end()
            unit.gather()
            unit.notify("recompute")
        else:
            unit.running += 1
            self.prefetching.enter(unit)
            unit.notify("forward")
        return (args, kwargs) if self.dtype is None else tree_map(self._converted, (args, kwargs))

    def _converted(self, value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(self.dtype) if floating else value

    def _leave(self, unit: Unit, module: nn.Module, args: Any, output: Any) -> None:
        """Free a unit's weights after its forward, and gather them again when backward reaches its output."""
        if in_backward():
            return
        unit.running -= 1
        way, here = self.prefetching.leave(unit)
        keep = torch.is_grad_enabled() and (unit is self.units[0] or not self.reshard)
        if torch.is_grad_enabled():
            coming_back = partial(self._come_back, way, here, unit.versions)
            tensors = list(tensors_in(output))
            if not tensors:  # backward could come through it unnoticed, and find weights that have been freed
                name = f"the output of {unit.name or 'the module'}"
                raise InvalidArgument(name, type(output).__name__, "tensors, nested or not")
            for tensor in tensors:
                if tensor.grad_fn is not None:
                    tensor.register_hook(coming_back)
        if not keep:
            unit.free()
        unit.hide() if self._forward_runs else unit.show_shards()

    def _come_back(self, way: list[Unit], here: int, versions: list[tuple[int, ...]], gradient: torch.Tensor) -> None:
        """Backward reaches the output of ``way[here]``, whose weights had these ``versions`` in forward.

        The frozen weights of the unit after it are given back. If a branch still needs them they are gathered again.
        """
        way[here].check_versions(way[here].rows, versions)
        self._begin_backward()
        for after in way[here + 1 : here + 2]:
            if after is not way[here]:
                after.free_frozen()
        self.prefetching.come_back(way, here)
        way[here].notify("backward")

    def _come_otherwise(self, unit: Unit) -> None:
        """Gather the weights of a unit whose output backward has not reached, or not yet."""
        self._begin_backward()
        unit.gather()

    def _begin_backward(self) -> None:
        if torch.is_grad_enabled():  # what would be saved are views of memory that is freed when backward is over
            expected = "False: weights that were gathered for a backward are not there for one through it"
            raise InvalidArgument("create_graph", True, expected)
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        if not self._backward_runs:
            self._backward_runs = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._backward_runs = False
        self.reducing.finish()
        computing = [unit for unit in self.units if self._forward_runs and unit.running]
        self._free([unit for unit in self.units if unit not in computing])
        for unit in computing:  # a forward asked for gradients, and goes on
            unit.gather()

    def _free(self, units: Sequence[Unit]) -> None:
        for unit in units:
            unit.end()
            unit.hide() if self._forward_runs else unit.show_shards()


def in_backward() -> bool:
    """Whether the autograd engine runs on this thread: a forward there is a recomputation."""
    return bool(torch._C._current_graph_task_id() != -1)
