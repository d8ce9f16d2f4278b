"""The two halves of an all-reduce, in place on a row of N equal pieces, of which piece r is rank r's."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dpbook.collectives import EvenSplit, Schedule, complete_everywhere, partial, relabel, verify
from dpbook.core import InvalidArgument, check_type
from dpbook.ddp.reducer import Handle
from dpbook.ddp.transport import BackgroundAllReduce

Half = Callable[[torch.Tensor], Handle]
"""Begins a half of an all-reduce on a 1-D row, in place.

An all-gather finds a rank's own piece in its place and fills in the others'. A reduce-scatter finds a whole row on
every rank and leaves the sum of this rank's pieces in their place; what it leaves in the others is not defined.
"""

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(group: dist.ProcessGroup | None = None) -> Half:
    """torch.distributed's all-gather."""

    def begin(row: torch.Tensor) -> Any:
        return _all_gather(row, _own_piece(row, group), group=group, async_op=True)

    return begin


def reduce_scatter(group: dist.ProcessGroup | None = None) -> Half:
    """torch.distributed's reduce-scatter, which gloo carries out as an all-reduce: twice the bytes."""

    def begin(row: torch.Tensor) -> Any:
        return _reduce_scatter(_own_piece(row, group), row, group=group, async_op=True)

    return begin


def over_half(
    half: Schedule | Callable[[int], Schedule], group: dist.ProcessGroup | None = None
) -> BackgroundAllReduce:
    """A half that a schedule carries out, on a thread of its own, such as `collectives.reduce_scatter`.

    It is for the CPU. The ranks may own other chunks than their own: chunks are renamed so that rank r owns chunk r.

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
    owners = _owners(schedule)
    if sorted(owners) != list(range(world)) or schedule.bounds != EvenSplit(world):
        raise InvalidArgument("half", schedule, "a reduce-scatter or an all-gather of one even chunk per rank")
    verify(schedule)
    return BackgroundAllReduce(relabel(schedule, chunks=owners), group or dist.new_group(backend="gloo"))


def _owners(schedule: Schedule) -> list[int]:
    """The rank that has each chunk between the halves; -1 where there is no such rank."""
    chunks = range(schedule.n_chunks)
    if all(schedule.before[c] == partial(schedule.world) for c in chunks):
        owned = schedule.after
    elif all(schedule.after[c] == complete_everywhere(schedule.world) for c in chunks):
        owned = schedule.before
    else:
        return []
    return [next(iter(holding)) if len(holding) == 1 else -1 for holding in owned]


def _own_piece(row: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    piece: torch.Tensor = row.chunk(dist.get_world_size(group))[dist.get_rank(group)]
    return piece
