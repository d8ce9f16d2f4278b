"""Run a schedule for real: this rank's share of its rounds, as point-to-point messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dpbook.collectives.interpret import interpret
from dpbook.collectives.rounds import Message, Round
from dpbook.collectives.schedule import Schedule, check_schedule
from dpbook.errors import InvalidArgument


def execute(schedule: Schedule, buffer: torch.Tensor | NDArray[Any]) -> None:
    """Carry out ``schedule`` in place on this rank's ``buffer``, a contiguous 1-D CPU tensor or writable array.

    Every rank of the default process group calls it with the same schedule and a buffer of the same size and
    dtype. The result has the bits that `simulate` predicts. Raises `InvalidArgument`, and whatever
    torch.distributed raises when a peer fails.
    """
    check_schedule(schedule)
    if not isinstance(buffer, np.ndarray | torch.Tensor):
        raise InvalidArgument("buffer", buffer, "a 1-D tensor or array")
    if isinstance(buffer, np.ndarray) and not (buffer.flags.writeable and buffer.flags.c_contiguous):
        raise InvalidArgument("buffer", buffer, "writable and contiguous")
    tensor = torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer
    if tensor.ndim != 1 or not tensor.is_contiguous():
        raise InvalidArgument("buffer", f"a tensor of shape {tuple(tensor.shape)}", "1-D and contiguous")
    if dist.get_world_size() != schedule.world:
        raise InvalidArgument("schedule", schedule, f"for the world of this process group, {dist.get_world_size()}")
    deque(interpret(schedule, _OneRank(schedule, tensor)), maxlen=0)


@dataclass(frozen=True)
class _InFlight:
    """The messages of this rank in one part of a round; ``sent`` is kept so that its memory stays alive."""

    sent: list[torch.Tensor]
    sends: list[dist.Work]
    arriving: list[tuple[Message, torch.Tensor, dist.Work]]


class _OneRank:
    """The interpreter's cells as one rank sees them: its own chunks, and messages to and from the others."""

    def __init__(self, schedule: Schedule, buffer: torch.Tensor) -> None:
        offsets = schedule.bounds(buffer.numel(), buffer.element_size()).tolist()
        self.rank = dist.get_rank()
        self.chunks = [buffer[begin:end] for begin, end in pairwise(offsets)]

    def read(self, part: Round, within: Round) -> _InFlight:
        mine = part.select((part.source == self.rank) | (part.dest == self.rank))
        written = {m.chunk for m in within.select(within.dest == self.rank)}
        flight = _InFlight([], [], [])
        for message in mine:  # all ranks post in the schedule's order, so messages between two ranks match in order
            chunk = self.chunks[message.chunk]
            if chunk.numel() == 0:
                continue
            if message.source == self.rank:
                outgoing = chunk.clone() if message.chunk in written else chunk
                flight.sent.append(outgoing)
                flight.sends.append(_required(dist.isend(outgoing, message.dest)))
            else:
                incoming = torch.empty_like(chunk)
                flight.arriving.append((message, incoming, _required(dist.irecv(incoming, message.source))))
        return flight

    def add(self, part: Round, payload: _InFlight) -> None:
        for message, values, request in payload.arriving:
            request.wait()
            self.chunks[message.chunk].add_(values)
        self._finish(payload)

    def put(self, part: Round, payload: _InFlight) -> None:
        for message, values, request in payload.arriving:
            request.wait()
            self.chunks[message.chunk].copy_(values)
        self._finish(payload)

    def _finish(self, payload: _InFlight) -> None:
        for request in payload.sends:
            request.wait()


def _required(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise InvalidArgument("process group", "one without this rank", "a group that this rank belongs to")
    return work
