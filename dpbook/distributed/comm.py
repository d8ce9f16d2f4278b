"""The `Comm` of rank programs, over the current torch.distributed process group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dpbook.collectives.comm import Op, check_message, deliver
from dpbook.collectives.source_line import line_of_caller
from dpbook.errors import InvalidArgument

HEADER = np.dtype([("size", np.int64), ("dtype", "S24")])
"""What goes ahead of every message. A message is received as it was sent and only then compared with the view that it
is for, so the two ranks stay in step even where they disagree. Of an empty view the header is all that travels."""


class ProcessComm:
    """What a rank program gets as ``comm`` in a real process; see `dpbook.collectives.Comm`.

    Needs an initialised process group (gloo). As in one process, ends that disagree raise `MessageError`: here on the
    receiving rank.
    """

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.world_size: int = dist.get_world_size()

    def send(self, view: NDArray[Any], to: int) -> None:
        check_message(self.rank, self.world_size, view, to, None)
        _wait(_begin_to_send(view, to))

    def recv(self, view: NDArray[Any], source: int, op: Op = "copy") -> None:
        check_message(self.rank, self.world_size, view, source, op)
        deliver(_receive(source), view, op, (source, ""), (self.rank, line_of_caller(1)))

    def sendrecv(self, send: NDArray[Any], to: int, recv: NDArray[Any], source: int, op: Op = "copy") -> None:
        check_message(self.rank, self.world_size, send, to, None)
        check_message(self.rank, self.world_size, recv, source, op)
        sending = _begin_to_send(send, to)
        arrived = _receive(source)
        _wait(sending)  # before anything is stored: the two slices may overlap
        deliver(arrived, recv, op, (source, ""), (self.rank, line_of_caller(1)))


def _begin_to_send(view: NDArray[Any], to: int) -> list[dist.Work | None]:
    if view.dtype.kind in "OV":
        raise InvalidArgument("view", f"an array of {view.dtype}", "of a plain dtype to travel between processes")
    header = np.array([(view.size, view.dtype.str)], HEADER)
    return [dist.isend(_as_bytes(part), to) for part in (header, view) if part.size]


def _wait(sending: list[dist.Work | None]) -> None:
    for request in sending:
        if request is not None:
            request.wait()


def _receive(source: int) -> NDArray[Any]:
    header = np.empty(1, HEADER)
    dist.recv(_as_bytes(header), source)
    size, dtype = int(header["size"][0]), header["dtype"][0].decode()
    arrived = np.empty(size, dtype)
    if size:
        dist.recv(_as_bytes(arrived), source)
    return arrived


def _as_bytes(array: NDArray[Any]) -> torch.Tensor:
    """The memory of an array, copied where it is not contiguous, as a tensor of bytes: any plain dtype can travel."""
    return torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
