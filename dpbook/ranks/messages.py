"""Messages between ranks, point to point: a schedule or a rank program carried out by this rank."""

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
from dpbook.collectives.programs import Op, check_message, deliver, line_of_caller
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, check_type

SEGMENT_BYTES = 4 * 2**20
"""Size of a segment; larger messages travel in several."""
WINDOW = 3
"""Segments that are awaited at a time. These two values were the fastest on loopback, of 1 to 8 MiB and 2 to 4."""
HEADER = np.dtype([("size", np.int64), ("dtype", "S24")])
"""Header of every message of a rank program. The receiver takes the message as it was sent, and only then compares it
with its view, so the two ranks stay in step even if they disagree. For an empty view only the header is sent."""


def execute(
    all_reduce: Schedule | Program, buffer: torch.Tensor | NDArray[Any], group: dist.ProcessGroup | None = None
) -> None:
    """Carry out a schedule or a rank program on this rank's ``buffer``: a contiguous 1-D CPU tensor or writable array.

    Every rank of ``group`` (default: all ranks) calls it with the same schedule and a buffer of the same size and
    dtype. The result has the bits that `simulate` predicts. Raises `InvalidArgument`, and the error of
    torch.distributed if a peer fails.
    """
    prepare(all_reduce, buffer, group)()


def prepare(
    all_reduce: Schedule | Program, buffer: torch.Tensor | NDArray[Any], group: dist.ProcessGroup | None = None
) -> Callable[[], object]:
    """Check the arguments of `execute` now, and return a function that sends and receives its messages.

    Raises `InvalidArgument` as `execute` does; the function raises the error of torch.distributed if a peer fails.
    """
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
    """Return an array with the memory of ``buffer``, for a rank program."""
    try:
        return buffer if isinstance(buffer, np.ndarray) else buffer.detach().numpy()
    except TypeError:  # NumPy has no such dtype, or the tensor is on a device
        expected = "of a dtype that NumPy has, on the CPU: a rank program receives an array"
        raise InvalidArgument("buffer", f"{buffer.dtype} on {buffer.device}", expected) from None


@dataclass(frozen=True)
class _Arrival:
    """A segment on its way to this rank: the memory for it, the target that it is added to or stored in, its sender."""

    values: torch.Tensor
    target: torch.Tensor
    source: int


@dataclass(frozen=True)
class _InFlight:
    """Messages of this rank in one part of a round: ``requests`` are in progress, ``buffers`` keeps memory alive."""

    buffers: list[torch.Tensor]
    requests: list[dist.Work]
    arrivals: list[_Arrival]


class _OneRank:
    """The interpreter's cells of one rank: its chunks, and messages to and from the other ranks.

    Messages travel in segments. `WINDOW` of them are awaited at a time, so that one is added while the next arrives,
    and while its memory is still in the cache.
    """

    def __init__(self, schedule: Schedule, buffer: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        offsets = schedule.bounds(buffer.numel(), buffer.element_size()).tolist()
        self.rank, self.group = dist.get_rank(group), group
        self.chunks = [buffer[begin:end] for begin, end in pairwise(offsets)]
        self.segment = max(1, SEGMENT_BYTES // buffer.element_size())

    def read(self, part: Round, within: Round) -> _InFlight:
        """Begin to send. Every rank follows the order of the schedule, so the messages between two ranks match."""
        written = {m.chunk for m in within.select(within.dest == self.rank)}
        flight = _InFlight([], [], [])
        scratch = _scratch(self.segment, self.chunks[0].dtype, threading.get_ident())
        for message in part.select(part.source == self.rank):
            chunk = self.chunks[message.chunk]
            for piece in self._segments(chunk.clone() if message.chunk in written else chunk):
                flight.buffers.append(piece)
                flight.requests.append(_required(dist.isend(piece, group=self.group, group_dst=message.dest)))
        for message in part.select(part.dest == self.rank):  # after outgoing chunks are copied
            for piece in self._segments(self.chunks[message.chunk]):
                if within.reduce is False:  # received in place
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
        """Return a chunk cut into segments; none for an empty chunk."""
        return chunk.split(self.segment) if chunk.numel() else ()


@lru_cache(maxsize=4)
def _scratch(elements: int, dtype: torch.dtype, thread: int) -> list[torch.Tensor]:
    """Return memory of a thread for segments to add, kept since fresh memory costs a page fault every 4 KiB."""
    return [torch.empty(elements, dtype=dtype, device="cpu") for _ in range(WINDOW)]


class _Batched(_OneRank):
    """The cells on an accelerator: messages that wait for each other are submitted together, as NCCL needs it."""

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


class ProcessComm:
    """The ``comm`` of a rank program in a real process; see `dpbook.collectives.Comm`.

    Needs an initialised process group (gloo); the ranks are those of ``group``, None for all. As in one process, two
    ends of a message that disagree raise `MessageError`: here on the receiving rank.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)
        self._group = group

    def send(self, view: NDArray[Any], to: int) -> None:
        check_message(self.rank, self.world_size, view, to, None)
        _wait(self._begin_to_send(view, to))

    def recv(self, view: NDArray[Any], source: int, op: Op = "copy") -> None:
        check_message(self.rank, self.world_size, view, source, op)
        deliver(self._receive(source), view, op, (source, ""), (self.rank, line_of_caller(1)))

    def sendrecv(self, send: NDArray[Any], to: int, recv: NDArray[Any], source: int, op: Op = "copy") -> None:
        check_message(self.rank, self.world_size, send, to, None)
        check_message(self.rank, self.world_size, recv, source, op)
        sending = self._begin_to_send(send, to)
        arrived = self._receive(source)
        _wait(sending)  # before anything is stored: the two slices may overlap
        deliver(arrived, recv, op, (source, ""), (self.rank, line_of_caller(1)))

    def _begin_to_send(self, view: NDArray[Any], to: int) -> list[dist.Work | None]:
        if view.dtype.kind in "OV":
            raise InvalidArgument("view", f"an array of {view.dtype}", "an array of plain numbers")
        header = np.array([(view.size, view.dtype.str)], HEADER)
        parts = [_as_bytes(part) for part in (header, view) if part.size]
        return [dist.isend(part, group=self._group, group_dst=to) for part in parts]

    def _receive(self, source: int) -> NDArray[Any]:
        header = np.empty(1, HEADER)
        dist.recv(_as_bytes(header), group=self._group, group_src=source)
        size, dtype = int(header["size"][0]), header["dtype"][0].decode()
        arrived = np.empty(size, dtype)
        if size:
            dist.recv(_as_bytes(arrived), group=self._group, group_src=source)
        return arrived


def _wait(sending: list[dist.Work | None]) -> None:
    for request in sending:
        if request is not None:
            request.wait()


def _as_bytes(array: NDArray[Any]) -> torch.Tensor:
    """Return the memory of an array as a tensor of bytes, so that any plain dtype can travel; copy it if necessary."""
    return torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
