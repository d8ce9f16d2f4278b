"""Communication of a sharded step: gathering of weights ahead of their unit, reduction of gradients in backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dpbook.core import InvalidArgument
from dpbook.ddp.reducer import AllReduce, Handle, call_when_ready
from dpbook.ddp.sharded.row import Half, Row
from dpbook.ddp.sharded.unit import Unit


class Prefetching:
    """Order in which the weights of ``units`` are gathered, ``depth`` units before they compute.

    The first forward is expected in the order of the modules, every later one in the order of the last forward, and
    backward in the reverse order of its forward. If this is wrong, a unit is gathered too early and used in its turn.
    """

    def __init__(self, units: Sequence[Unit], depth: int) -> None:
        self.units, self.depth = units, depth
        self.expected: list[Unit] = list(units)
        self.entered: list[Unit] = []
        self.computed: list[Unit] = []

    def begin(self) -> None:
        """Start a forward pass."""
        if self.entered:
            self.expected = self.entered
        self.entered, self.computed = [], []

    def enter(self, unit: Unit) -> None:
        """Make the full weights of ``unit`` available: forward is about to compute it."""
        here = len(self.entered)
        self.entered.append(unit)
        as_expected = self.expected[here : here + 1] == [unit]
        self._gather(unit, self.expected[here + 1 : here + 1 + self.depth] if as_expected else [])

    def leave(self, unit: Unit) -> tuple[list[Unit], int]:
        """Note that forward has computed ``unit``; return the units computed so far, and its place among them."""
        self.computed.append(unit)
        return self.computed, len(self.computed) - 1

    def come_back(self, way: list[Unit], here: int) -> None:
        """Make the full weights of ``way[here]`` available: backward is about to compute it."""
        self._gather(way[here], way[max(0, here - self.depth) : here][::-1])

    def _gather(self, unit: Unit, ahead: Sequence[Unit]) -> None:
        """Request the next units before waiting for this one, so that their weights travel while it computes."""
        for each in (unit, *ahead):
            each.begin_to_gather()
        unit.gather()


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
