"""Run a schedule or a rank program for real: this rank's share of the messages, from point to point."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dpbook.collectives import Program, Round, Schedule, interpret
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, check_type
from dpbook.ranks.messages.process_comm import ProcessComm

SEGMENT = 4 * 2**20
"""Bytes. Larger messages travel in pieces of so many."""
WINDOW = 3
"""Segments that are awaited at a time. On loopback these two do best, of 1 to 8 MiB and 2 to 4 segments."""


def execute(
    all_reduce: Schedule | Program, buffer: torch.Tensor | NDArray[Any], group: dist.ProcessGroup | None = None
) -> None:
    """Carry out a schedule or a rank program on this rank's ``buffer``: a contiguous 1-D CPU tensor or writable array.

    Every rank of ``group`` (default: all) calls it with the same schedule and a buffer of the same size and
    dtype. The result has the bits that `simulate` predicts. Raises `InvalidArgument`, and whatever
    torch.distributed raises when a peer fails.
    """
    prepare(all_reduce, buffer, group)()


def prepare(
    all_reduce: Schedule | Program, buffer: torch.Tensor | NDArray[Any], group: dist.ProcessGroup | None = None
) -> Callable[[], object]:
    """What `execute` does, in two parts: arguments are checked now, messages travel when the result is called."""
    check_type("buffer", buffer, (np.ndarray, torch.Tensor), "a 1-D tensor or array")
    if isinstance(buffer, np.ndarray) and not (buffer.flags.writeable and buffer.flags.c_contiguous):
        raise InvalidArgument("buffer", buffer, "writable and contiguous")
    if buffer.ndim != 1 or (isinstance(buffer, torch.Tensor) and not buffer.is_contiguous()):
        raise InvalidArgument("buffer", f"one of shape {tuple(buffer.shape)}", "1-D and contiguous")
    if callable(all_reduce):
        return partial(all_reduce, ProcessComm(group), _as_array(buffer))
    check_schedule(all_reduce)
    world = dist.get_world_size(group)
    if world != all_reduce.world:
        raise InvalidArgument("schedule", all_reduce, f"for the world of this process group, {world}")
    tensor = torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer.detach()
    cells = (_OneRank if tensor.device.type == "cpu" else _Batched)(all_reduce, tensor, group)
    return lambda: deque(interpret(all_reduce, cells), maxlen=0)


def _as_array(buffer: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """The same memory, for a rank program."""
    try:
        return buffer if isinstance(buffer, np.ndarray) else buffer.detach().numpy()
    except TypeError:  # of a dtype or on a device that NumPy does not know
        expected = "of a dtype that NumPy has, on the CPU: a rank program gets an array"
        raise InvalidArgument("buffer", f"{buffer.dtype} on {buffer.device}", expected) from None


@dataclass(frozen=True)
class _Arrival:
    """A segment on its way to this rank: where it arrives, what it is then added to or stored in, and who sends it."""

    values: torch.Tensor
    target: torch.Tensor
    source: int


@dataclass(frozen=True)
class _InFlight:
    """The messages of this rank in one part of a round.

    ``requests`` are under way; ``arrivals`` are to be stored. ``buffers`` keeps memory alive until then.
    """

    buffers: list[torch.Tensor]
    requests: list[dist.Work]
    arrivals: list[_Arrival]


class _OneRank:
    """The interpreter's cells as one rank sees them: its own chunks, and messages to and from the others.

    Messages travel in segments, and `WINDOW` of them are awaited at a time, so that one is added while the next
    arrives, and in memory that is still in the cache.
    """

    def __init__(self, schedule: Schedule, buffer: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        offsets = schedule.bounds(buffer.numel(), buffer.element_size()).tolist()
        self.rank, self.group = dist.get_rank(group), group
        self.chunks = [buffer[begin:end] for begin, end in pairwise(offsets)]
        self.segment = max(1, SEGMENT // buffer.element_size())

    def read(self, part: Round, within: Round) -> _InFlight:
        """Begin to send; every rank goes through the schedule in its order, so messages between two ranks match."""
        written = {m.chunk for m in within.select(within.dest == self.rank)}
        flight = _InFlight([], [], [])
        scratch = _scratch(self.segment, self.chunks[0].dtype, threading.get_ident())
        for message in part.select(part.source == self.rank):
            chunk = self.chunks[message.chunk]
            for piece in self._segments(chunk.clone() if message.chunk in written else chunk):
                flight.buffers.append(piece)
                flight.requests.append(_required(dist.isend(piece, group=self.group, group_dst=message.dest)))
        for message in part.select(part.dest == self.rank):  # after the copies of what goes out
            for piece in self._segments(self.chunks[message.chunk]):
                if within.reduce is False:  # straight to its place
                    flight.requests.append(self._begin_to_receive(piece, message.source))
                else:
                    values = scratch[len(flight.arrivals) % WINDOW][: piece.numel()]
                    flight.arrivals.append(_Arrival(values, piece, message.source))
        return flight

    def add(self, part: Round, payload: _InFlight) -> None:
        self._receive(payload, torch.Tensor.add_)

    def put(self, part: Round, payload: _InFlight) -> None:
        self._receive(payload, torch.Tensor.copy_)

    def _receive(self, payload: _InFlight, store: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        waiting: deque[tuple[_Arrival, dist.Work]] = deque()

        def take() -> None:
            arrival, request = waiting.popleft()
            request.wait()
            store(arrival.target, arrival.values)

        for arrival in payload.arrivals:
            if len(waiting) == WINDOW:
                take()
            waiting.append((arrival, self._begin_to_receive(arrival.values, arrival.source)))
        while waiting:
            take()
        for request in payload.requests:
            request.wait()

    def _begin_to_receive(self, values: torch.Tensor, source: int) -> dist.Work:
        return _required(dist.irecv(values, group=self.group, group_src=source))

    def _segments(self, chunk: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A chunk cut into segments; none of an empty one."""
        return chunk.split(self.segment) if chunk.numel() else ()


@lru_cache(maxsize=4)
def _scratch(elements: int, dtype: torch.dtype, thread: int) -> list[torch.Tensor]:
    """Where segments wait to be added, kept from call to call: fresh memory costs a page fault every 4 KiB.

    Each thread has its own: schedules may be carried out in several at once.
    """
    return [torch.empty(elements, dtype=dtype, device="cpu") for _ in range(WINDOW)]


class _Batched(_OneRank):
    """The same on an accelerator, such as for NCCL: messages that wait for each other are handed over together."""

    def read(self, part: Round, within: Round) -> _InFlight:
        operations, arrivals, buffers = [], [], []
        written = {m.chunk for m in within.select(within.dest == self.rank)}
        for message in part.select((part.source == self.rank) | (part.dest == self.rank)):
            chunk = self.chunks[message.chunk]
            if not chunk.numel():
                continue
            if message.source == self.rank:
                buffers.append(chunk.clone() if message.chunk in written else chunk)
                operations.append(dist.P2POp(dist.isend, buffers[-1], group=self.group, group_peer=message.dest))
            else:
                buffers.append(torch.empty_like(chunk))
                operations.append(dist.P2POp(dist.irecv, buffers[-1], group=self.group, group_peer=message.source))
                arrivals.append(_Arrival(buffers[-1], chunk, message.source))
        return _InFlight(buffers, dist.batch_isend_irecv(operations) if operations else [], arrivals)

    def _receive(self, payload: _InFlight, store: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        for request in payload.requests:
            request.wait()
        for arrival in payload.arrivals:
            store(arrival.target, arrival.values)


def _required(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise InvalidArgument("process group", "one without this rank", "a group that this rank belongs to")
    return work
