"""The `Comm` of rank programs, over the current torch.distributed process group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dpbook.collectives.comm import Op, check_message


class ProcessComm:
    """What a rank program gets as ``comm`` in a real process; see `dpbook.collectives.Comm`.

    Needs an initialised process group (gloo). An empty view is no message.
    """

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.world_size: int = dist.get_world_size()

    def send(self, view: NDArray[Any], to: int) -> None:
        check_message(self.rank, self.world_size, view, to, None)
        if view.size:
            dist.send(_as_bytes(np.ascontiguousarray(view)), to)

    def recv(self, view: NDArray[Any], source: int, op: Op = "copy") -> None:
        check_message(self.rank, self.world_size, view, source, op)
        if view.size:
            arrived = np.empty_like(view, order="C")
            dist.recv(_as_bytes(arrived), source)
            _store(view, arrived, op)

    def sendrecv(self, send: NDArray[Any], to: int, recv: NDArray[Any], source: int, op: Op = "copy") -> None:
        check_message(self.rank, self.world_size, send, to, None)
        check_message(self.rank, self.world_size, recv, source, op)
        arrived = np.empty_like(recv, order="C")
        sending = dist.isend(_as_bytes(np.ascontiguousarray(send)), to) if send.size else None
        receiving = dist.irecv(_as_bytes(arrived), source) if recv.size else None
        for request in (sending, receiving):
            if request is not None:
                request.wait()
        _store(recv, arrived, op)  # only now: the two slices may overlap


def _as_bytes(array: NDArray[Any]) -> torch.Tensor:
    """The memory of a contiguous array as a tensor of bytes: any dtype can travel."""
    return torch.from_numpy(array.view(np.uint8))


def _store(view: NDArray[Any], arrived: NDArray[Any], op: Op) -> None:
    if op == "sum":
        np.add(view, arrived, out=view)
    else:
        np.copyto(view, arrived)
