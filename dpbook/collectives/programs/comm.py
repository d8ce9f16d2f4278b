"""What a rank program is, what it may do, and what has to hold wherever it runs."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, MessageError

Op = Literal["copy", "sum"]


class Comm(Protocol):
    """What a rank program may do. Views are slices of the program's 1-D buffer; all calls wait until they are done."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def send(self, view: NDArray[Any], to: int) -> None:
        """Send ``view`` to rank ``to``; waits until that rank receives it."""

    def recv(self, view: NDArray[Any], source: int, op: Op = "copy") -> None:
        """Receive from rank ``source`` into ``view``, replacing ("copy") or adding to ("sum") what is there."""

    def sendrecv(self, send: NDArray[Any], to: int, recv: NDArray[Any], source: int, op: Op = "copy") -> None:
        """Do both at once, so that a circle of ranks does not wait for itself; ``send`` is read first."""


Program = Callable[[Comm, NDArray[Any]], object]
"""``program(comm, x)``: an ordinary function that sees its own rank and its 1-D buffer, which it changes in place."""


def check_message(rank: int, world_size: int, view: object, peer: int, op: str | None) -> None:
    """Raise `InvalidArgument` unless ``view``, ``peer`` and (for a receive) ``op`` make a message."""
    if not isinstance(view, np.ndarray) or view.ndim != 1:
        raise InvalidArgument("view", view, "a 1-D slice of the buffer")
    if isinstance(peer, bool) or not isinstance(peer, int | np.integer) or not 0 <= peer < world_size or peer == rank:
        name = "to" if op is None else "source"
        raise InvalidArgument(f"{name} on rank {rank}", peer, f"another rank in 0..{world_size - 1}")
    if op is not None and op not in ("copy", "sum"):
        raise InvalidArgument("op", op, "'copy' or 'sum'")
    if op is not None and not view.flags.writeable:
        raise InvalidArgument("view", "a read-only array", "writable")


def deliver(
    payload: NDArray[Any], view: NDArray[Any], op: Op, sender: tuple[int, str], receiver: tuple[int, str]
) -> None:
    """Store what has arrived in ``view``, or add it. Each end is a rank and, where known, its line in the program.

    Raises `MessageError` unless ``payload`` has the length and dtype of ``view``.
    """
    if payload.shape != view.shape or payload.dtype != view.dtype:
        raise MessageError(f"{_tell(sender, 'sends', payload)}, but {_tell(receiver, 'receives', view)}")
    if op == "sum":
        np.add(view, payload, out=view)
    else:
        np.copyto(view, payload)


def _tell(end: tuple[int, str], verb: str, array: NDArray[Any]) -> str:
    rank, line = end
    return f"rank {rank} {verb} {array.size} × {array.dtype}" + (f" ({line})" if line else "")


def copy_buffers(buffers: Sequence[NDArray[Any]] | NDArray[Any]) -> list[NDArray[Any]]:
    """A copy of each rank's buffer. Raises `InvalidArgument` unless they are 1-D arrays, at least one."""
    expected = "one 1-D array per rank"
    try:
        copies = [np.array(buffer) for buffer in buffers]
    except (TypeError, ValueError):  # nothing to iterate over; lists of unequal length
        raise InvalidArgument("buffers", buffers, expected) from None
    if not copies or any(copy.ndim != 1 for copy in copies):
        raise InvalidArgument("buffers", [copy.shape for copy in copies], expected)
    return copies
