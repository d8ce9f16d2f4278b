"""Forward and backward of a sharded module: its weights are gathered ahead of their use, its gradients are reduced.

Backward usually comes to a unit through its output, and the unit has its weights then. A loss of something inside of a
unit, such as an auxiliary loss of a layer, reaches them by another path; they are gathered when backward reads them.
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
from dpbook.ddp.reducer import AllReduce, Handle, call_when_ready, tensors_in
from dpbook.ddp.sharded.row import Half, Row
from dpbook.ddp.sharded.unit import Unit


@dataclass
class _Sum:
    """A row whose gradients are being summed: over the ranks that share it, then over those with the same shard."""

    unit: Unit
    row: Row
    handle: Handle
    piece: torch.Tensor | None = None


class Reducing:
    """Hooks on the whole weights of ``units``, which average their gradients over all ranks that train.

    A row of gradients stays whole until its reduction begins. ``enabled`` False keeps it and accumulates into it. At
    most one reduce-scatter is under way while the next row's gradients come. ``begin`` is called for every gradient,
    and must ensure that `finish` is called when backward ends.
    """

    begin: Callable[[], None]

    def __init__(self, units: Sequence[Unit], reduce_scatter: Half, across: AllReduce | None, world: int) -> None:
        self.units, self.reduce_scatter, self.across, self.scale = units, reduce_scatter, across, 1 / world
        self.enabled = True
        self._under_way: _Sum | None = None
        self._crossing: list[_Sum] = []
        self._missing: dict[Row, set[int]] = {}
        self._trained = [(unit, row) for unit in units for row in unit.rows if row.trained]
        for place, (_, row) in enumerate(self._trained):
            for index, weight in enumerate(row.weights):
                call_when_ready(weight, self, Reducing._ready, place, index)

    def _ready(self, place: int, index: int) -> None:
        """Handle a gradient of a weight that is complete on this rank."""
        unit, row = self._trained[place]
        weight = row.weights[index]
        self.begin()
        if weight.grad is not None and weight.grad.layout != torch.strided:
            expected = "dense, as of nn.Embedding(sparse=False)"
            raise InvalidArgument(f"the gradient of {row.members[index].name}", weight.grad.layout, expected)
        if self._is_under_way(row):
            self._settle()
        missing = self._missing.setdefault(row, set(range(len(row.weights))))
        missing.discard(index)
        if not missing:
            del self._missing[row]  # a reentrant checkpoint may come with them once more
            unit.free([row])  # nobody needs it any more: all that use a weight come before its gradient
            if self.enabled:
                self._settle()
        row.add_gradient(index)  # after memory has been given back: a row of one weight takes its own only now
        if self.enabled and not missing:
            self._reduce(unit, row)

    def _reduce(self, unit: Unit, row: Row) -> None:
        """Begin to reduce a row of gradients after the reduction before it is complete."""
        self._settle()
        gradient = row.gradient
        assert gradient is not None  # what is reduced has some
        gradient.mul_(self.scale)
        unit.notify("reduce", gradient.numel() * gradient.element_size())
        self._under_way = _Sum(unit, row, self.reduce_scatter(gradient))

    def _settle(self) -> None:
        """Wait for the reduction in progress; keep this rank's piece of the sum, and free the rest."""
        done, self._under_way = self._under_way, None
        if done is None:
            return
        gradient = done.row.gradient
        assert gradient is not None
        done.handle.wait()
        done.piece, done.row.gradient = gradient[done.row.mine].clone(), None
        done.unit.notify("reduced", gradient.numel() * gradient.element_size())
        if self.across is None:
            done.row.deliver(done.piece)
        else:
            done.handle = self.across(done.piece)
            self._crossing.append(done)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """Handle the end of a backward: reduce the remaining rows, and wait for all of them."""
        self._missing.clear()
        if self.enabled:
            for unit in reversed(self.units):
                for row in unit.rows:
                    if row.gradient is not None and not self._is_under_way(row):
                        self._reduce(unit, row)
        self._settle()
        for done in self._crossing:
            assert done.piece is not None
            done.handle.wait()
            done.row.deliver(done.piece)
        self._crossing.clear()

    def _is_under_way(self, row: Row) -> bool:
        return self._under_way is not None and self._under_way.row is row

    def forget(self) -> None:
        """Drop gradients that are not summed yet, and wait for messages that still write into them."""
        for done in [*([self._under_way] if self._under_way else []), *self._crossing]:
            done.handle.wait()
        self._under_way = None
        self._crossing.clear()
        self._missing.clear()
        for unit in self.units:
            for row in unit.rows:
                row.gradient = None


@dataclass(frozen=True)
class _Weight:
    """A weight, or a view of one, of a row that had these ``versions`` in forward."""

    tensor: torch.Tensor
    unit: Unit
    row: Row
    versions: tuple[int, ...]


class Passes:
    """Hooks on the modules of ``units``, of which the first is around all others.

    ``dtype``: of the inputs to compute with, None for their own. ``reshard``: whether weights are freed after forward;
    those of the first unit stay in any case, backward begins with them. ``prefetch`` units are gathered before they
    compute. The first forward is expected in the order of the modules, every later one in the order of the last
    forward, and backward in the reverse order of its forward. If this is wrong, a unit is gathered too early and used
    in its turn.
    """

    def __init__(
        self, units: list[Unit], reducing: Reducing, dtype: torch.dtype | None, reshard: bool, prefetch: int
    ) -> None:
        self.units, self.reducing = units, reducing
        self.dtype, self.reshard, self.prefetch = dtype, reshard, prefetch
        self._expected, self._entered, self._computed = list(units), list[Unit](), list[Unit]()
        self._forward_runs = self._backward_runs = False
        self._owners = {row.whole.untyped_storage()._cdata: (unit, row) for unit in units for row in unit.rows}
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
        self._expected = self._entered or self._expected
        self._entered, self._computed = [], []
        for unit in self.units:
            unit.hide()
        try:
            with self._watch_saved():
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
            here = len(self._entered)
            self._entered.append(unit)
            as_expected = self._expected[here : here + 1] == [unit]
            self._gather(unit, self._expected[here + 1 : here + 1 + self.prefetch] if as_expected else [])
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
        way, here = self._computed, len(self._computed)
        way.append(unit)
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
        """Backward reaches the output of ``way[here]``, whose weights had these ``versions`` in forward."""
        way[here].check_versions(way[here].rows, versions)
        self._begin_backward()
        for after in way[here + 1 : here + 2]:  # give back its frozen weights; a branch may gather them again
            if after is not way[here] and not after.contains_units:  # those of a unit around others stay until its end
                after.free([row for row in after.rows if not row.trained])
        self._gather(way[here], way[max(0, here - self.prefetch) : here][::-1])
        way[here].notify("backward")

    def _gather(self, unit: Unit, ahead: Sequence[Unit]) -> None:
        """Request the next units before waiting for this one, so that their weights travel while it computes."""
        for each in (unit, *ahead):
            each.begin_to_gather()
        unit.gather()

    def _watch_saved(self) -> AbstractContextManager[object]:
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
            self._begin_backward()  # which has not reached the output of this unit, or not yet
            saved.unit.gather()
        return saved.tensor

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
            unit.running = 0
            unit.free()
            unit.hide() if self._forward_runs else unit.show_shards()


def in_backward() -> bool:
    """Whether the autograd engine runs on this thread: a forward there is a recomputation."""
    return bool(torch._C._current_graph_task_id() != -1)
