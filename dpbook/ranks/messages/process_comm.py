"""The `Comm` of rank programs, over a process group of torch.distributed."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dpbook.collectives.programs import Op, check_message, deliver, line_of_caller
from dpbook.core import InvalidArgument

HEADER = np.dtype([("size", np.int64), ("dtype", "S24")])
"""What goes ahead of every message. A message is received as it was sent and only then compared with the view that it
is for, so the two ranks stay in step even where they disagree. Of an empty view the header is all that travels."""


class ProcessComm:
    """What a rank program gets as ``comm`` in a real process; see `dpbook.collectives.Comm`.

    Needs an initialised process group (gloo); the ranks are those of ``group``, None for all. As in one process, ends
    that disagree raise `MessageError`: here on the receiving rank.
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
            raise InvalidArgument("view", f"an array of {view.dtype}", "of a plain dtype to travel between processes")
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
    """The memory of an array, copied where it is not contiguous, as a tensor of bytes: any plain dtype can travel."""
    return torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
