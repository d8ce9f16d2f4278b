"""What a rank program is, and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpbook.errors import InvalidArgument

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
