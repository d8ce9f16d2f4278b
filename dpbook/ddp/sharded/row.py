"""A flat row: parameters of one kind, end to end, cut into one equal piece per rank.

The row is whole only for a moment. A rank keeps its piece, the shard, and the parameters that an optimizer sees are
slices of it. The whole weights lie in memory that is freed and allocated again: tensors saved for backward are views of
it, and have their values again once it has been gathered again.

An all-reduce has two halves, both in place on a row: reduce-scatter, after which piece r is complete on rank r, and
all-gather.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpbook.collectives import EvenSplit, Schedule, collective_of, relabel, verify
from dpbook.core import InvalidArgument, check_type
from dpbook.ddp.reducer import Handle
from dpbook.ddp.sharded.units import Member, Slice
from dpbook.ddp.transport import BackgroundAllReduce

Half = Callable[[torch.Tensor], Handle]
"""Begins a half of an all-reduce on a 1-D row, in place.

An all-gather finds a rank's own piece in its place and fills in the others'. A reduce-scatter finds a whole row on
every rank and leaves the sum of this rank's pieces in their place; what it leaves in the others is not defined.
"""

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(group: dist.ProcessGroup | None = None) -> Half:
    """Begin torch.distributed's all-gather."""

    def begin(row: torch.Tensor) -> Any:
        return _all_gather(row, _own_piece(row, group), group=group, async_op=True)

    return begin


def reduce_scatter(group: dist.ProcessGroup | None = None) -> Half:
    """Begin torch.distributed's reduce-scatter, which gloo executes as an all-reduce: twice the bytes."""

    def begin(row: torch.Tensor) -> Any:
        return _reduce_scatter(_own_piece(row, group), row, group=group, async_op=True)

    return begin


def over_half(
    half: Schedule | Callable[[int], Schedule], group: dist.ProcessGroup | None = None
) -> BackgroundAllReduce:
    """Return a half of an all-reduce that executes a schedule on a separate thread; for tensors on the CPU.

    A schedule may leave chunk c on another rank than c: chunks are renumbered so that rank r owns chunk r.

    Args:
        half: a schedule, or a function of the world that makes one, with a chunk for each rank: partial on every rank,
            then each complete on one rank, or the other way round.
        group: of gloo, for these messages alone; None makes one of all ranks, as `dpbook.ddp.over` does.

    Raises `InvalidArgument` for a schedule of another world or one that promises no half, `ScheduleError` for one that
    breaks its promise.
    """
    world = dist.get_world_size(group)
    schedule = half(world) if callable(half) else half
    check_type("half", schedule, Schedule, "a Schedule, or a function that makes one, such as collectives.all_gather")
    if schedule.world != world:
        raise InvalidArgument("half", schedule, f"for {world} ranks")
    owned = {"reduce_scatter": schedule.after, "all_gather": schedule.before, "all_reduce": schedule.after}
    holdings = owned.get(collective_of(schedule) or "", ())  # an all-reduce is a half too in a world of one rank
    owners = [rank for holding in holdings for rank in holding]
    if sorted(owners) != list(range(world)) or schedule.bounds != EvenSplit(world):
        raise InvalidArgument("half", schedule, "a reduce-scatter or an all-gather of one even chunk per rank")
    verify(schedule)
    return BackgroundAllReduce(relabel(schedule, chunks=owners), group or dist.new_group(backend="gloo"))


def _own_piece(row: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    piece: torch.Tensor = row.chunk(dist.get_world_size(group))[dist.get_rank(group)]
    return piece


class Row:
    """The row of ``members``, which have one dtype and device and are all trained or all frozen.

    ``shard`` is 1-D, of ceil(elements / world), padded with zeros; ``whole`` has world times as many elements, of
    dtype ``computing``, and memory only between `begin_to_gather` and `free`. Each member's parameter becomes a slice
    of the shard, an empty one where the piece has nothing of it; ``weights`` are the parameters to compute with.
    """

    def __init__(self, members: Sequence[Member], computing: torch.dtype, rank: int, world: int) -> None:
        first = members[0].parameter
        self.members, self.world = tuple(members), world
        self.trained: bool = first.requires_grad
        sizes = [member.parameter.numel() for member in members]
        self.offsets = [0, *accumulate(sizes)]
        self.spans = list(pairwise(self.offsets))
        """Begin and end of each member in the row."""
        self.length = -(-self.offsets[-1] // world)
        self.mine = slice(rank * self.length, (rank + 1) * self.length)
        self.shard = torch.zeros(self.length, dtype=first.dtype, device=first.device)
        self.whole = torch.empty(world * self.length, dtype=computing, device=first.device)
        self.shapes = [tuple(member.parameter.shape) for member in members]
        # Of `.data`, so that their versions do not change when the row is gathered once more.
        parts = [self.whole.data[a:b].view(s) for (a, b), s in zip(self.spans, self.shapes, strict=True)]
        self.weights = [nn.Parameter(part, requires_grad=self.trained) for part in parts]
        self.gradient: torch.Tensor | None = None
        self.handle: Handle | None = None
        self.free()

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Begin and end of each member's slice in the shard."""
        begin, end = self.mine.start, self.mine.stop
        return [(min(max(a, begin), end) - begin, min(max(b, begin), end) - begin) for a, b in self.spans]

    def share_out(self, groups: Sequence[dist.ProcessGroup | None]) -> None:
        """Keep this rank's piece of the values of rank 0 of the ``groups``, in turn; members become slices of it."""
        values = torch.zeros(self.world * self.length, dtype=self.shard.dtype, device=self.shard.device)
        for member, (a, b) in zip(self.members, self.spans, strict=True):
            values[a:b].copy_(member.parameter.detach().reshape(-1))
        for group in groups:
            dist.broadcast(values, group_src=0, group=group)
        self.shard.copy_(values[self.mine])
        for member, (a, b) in zip(self.members, self.pieces, strict=True):
            member.parameter.data = self.shard[a:b]
            member.parameter.grad = None

    def join(self, all_gather: Half) -> None:
        """Make the members whole again, in the dtype of the shard."""
        flat = torch.empty(self.world * self.length, dtype=self.shard.dtype, device=self.shard.device)
        flat[self.mine] = self.shard
        all_gather(flat).wait()
        for member, (a, b), shape in zip(self.members, self.spans, self.shapes, strict=True):
            member.parameter.data = flat[a:b].view(shape)
            member.parameter.grad = None

    def check(self) -> None:
        """Raise `InvalidArgument` if a parameter is no longer a slice of the shard, or trained when others are not.

        Its values would be lost silently, because the shard is what is gathered.
        """
        memory = self.shard.untyped_storage()._cdata
        for member in self.members:
            if member.parameter.untyped_storage()._cdata != memory or member.parameter.dtype != self.shard.dtype:
                expected = "a slice of the shard: move and convert a module before wrapping, and write in place"
                raise InvalidArgument(member.name, "a tensor in other memory or of another dtype", expected)
            if member.parameter.requires_grad != self.trained:
                expected = f"{self.trained}: change it before wrapping, or between `unwrap` and the next wrapping"
                raise InvalidArgument(f"requires_grad of {member.name}", member.parameter.requires_grad, expected)
            if member.parameter._backward_hooks or member.parameter._post_accumulate_grad_hooks:
                expected = "none: only whole weights get gradients in backward, and the parameter gets the sum later"
                raise InvalidArgument(f"hooks of {member.name}", "a hook on its gradient", expected)

    @property
    def alive(self) -> bool:
        """Whether the whole row has memory."""
        return bool(self.whole.untyped_storage().size())

    @property
    def nbytes(self) -> int:
        """Bytes of the whole row."""
        return int(self.whole.numel() * self.whole.element_size())

    def begin_to_gather(self, all_gather: Half) -> None:
        """Allocate memory for the whole row and begin to gather it."""
        self.whole.untyped_storage().resize_(self.nbytes)
        with torch.no_grad():
            self.whole[self.mine].copy_(self.shard)
        self.handle = all_gather(self.whole)

    def wait(self) -> None:
        """Wait until the whole row has been gathered."""
        if self.handle is not None:
            self.handle.wait()
            self.handle = None

    def free(self) -> None:
        """Free the memory of the whole row, even if views of it exist."""
        self.wait()  # what is on its way would be written into memory of others
        self.whole.untyped_storage().resize_(0)

    def add_gradient(self, index: int) -> None:
        """Move the gradient of a weight into the row of gradients, which has the dtype of the shard."""
        weight, (a, b) = self.weights[index], self.spans[index]
        if self.gradient is None:
            self.gradient = torch.zeros(self.world * self.length, dtype=self.shard.dtype, device=self.shard.device)
        self.gradient[a:b].view_as(weight).add_(weight.grad)
        weight.grad = None

    def slice_of(self, index: int, values: torch.Tensor) -> Slice:
        """Return ``values``, this rank's slice of a parameter or of its optimizer state, as a `Slice`."""
        begin = max(self.offsets[index], self.mine.start) - self.offsets[index]
        return Slice(values, self.shapes[index], begin)

    def piece_of(self, index: int, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice of a member's ``values``: a `Slice` like its own, or the whole tensor."""
        if tuple(values.shape) != self.shapes[index]:
            raise InvalidArgument(f"state_dict[{name!r}]", tuple(values.shape), f"of shape {self.shapes[index]}")
        if isinstance(values, Slice):
            return values.local
        begin = max(self.offsets[index], self.mine.start) - self.offsets[index]
        a, b = self.pieces[index]
        return values.reshape(-1)[begin : begin + b - a]

    def deliver(self, piece: torch.Tensor) -> None:
        """Add this rank's piece of the summed gradients to the gradients of the members."""
        for member, (a, b) in zip(self.members, self.pieces, strict=True):
            if member.parameter.grad is None:
                member.parameter.grad = piece[a:b]
            else:
                member.parameter.grad += piece[a:b]

    @property
    def versions(self) -> tuple[int, ...]:
        """Version numbers, which change whenever the shard is written."""
        return tuple(member.parameter._version for member in self.members)
