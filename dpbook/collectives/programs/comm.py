"""Interface of rank programs, checks of their messages, and the source lines for error messages."""

import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpbook.core import PACKAGE, InvalidArgument, MessageError

Op = Literal["copy", "sum"]


class Comm(Protocol):
    """Communicator of a rank program. Views are slices of the program's 1-D buffer, and all calls are blocking."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def send(self, view: NDArray[Any], to: int) -> None:
        """Send ``view`` to rank ``to``, and wait until that rank receives it."""

    def recv(self, view: NDArray[Any], source: int, op: Op = "copy") -> None:
        """Receive from rank ``source`` into ``view``, replacing its content ("copy") or adding to it ("sum")."""

    def sendrecv(self, send: NDArray[Any], to: int, recv: NDArray[Any], source: int, op: Op = "copy") -> None:
        """Send and receive at once, so that a ring of ranks does not deadlock; ``send`` is read first."""


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
    """Store a received payload in ``view``, or add it. Each end is a rank and its line in the program, "" if unknown.

    Raises `MessageError` unless ``payload`` has the length and dtype of ``view``.
    """
    if payload.shape != view.shape or payload.dtype != view.dtype:
        raise MessageError(
            f"{_describe_end(sender, 'sends', payload)}, but {_describe_end(receiver, 'receives', view)}"
        )
    if op == "sum":
        np.add(view, payload, out=view)
    else:
        np.copyto(view, payload)


def _describe_end(end: tuple[int, str], verb: str, array: NDArray[Any]) -> str:
    rank, line = end
    return f"rank {rank} {verb} {array.size} × {array.dtype}" + (f" ({line})" if line else "")


def copy_buffers(buffers: Sequence[NDArray[Any]] | NDArray[Any]) -> list[NDArray[Any]]:
    """Return a copy of each rank's buffer. Raises `InvalidArgument` unless they are 1-D arrays, at least one."""
    expected = "one 1-D array per rank"
    try:
        copies = [np.array(buffer) for buffer in buffers]
    except (TypeError, ValueError):  # nothing to iterate over; lists of unequal length
        raise InvalidArgument("buffers", buffers, expected) from None
    if not copies or any(copy.ndim != 1 for copy in copies):
        raise InvalidArgument("buffers", [copy.shape for copy in copies], expected)
    return copies


_COLLECTIVES = str(PACKAGE / "collectives")


_remote_line: ContextVar[str] = ContextVar("line of a program that runs in another process", default="")


@contextmanager
def attributed_to_line(line: str) -> Iterator[None]:
    """Attribute calls to ``line`` of a program in another process while the context lasts."""
    token = _remote_line.set(line)
    try:
        yield
    finally:
        _remote_line.reset(token)


def line_of_caller(depth: int) -> str:
    """Return the running line ``depth`` calls above the caller of this function: 'line 3 of f: `comm.send(x, 1)`'."""
    return _remote_line.get() or _describe(sys._getframe(depth + 1))


def line_of_error(error: BaseException) -> str:
    """Return the innermost line that raised, outside of this folder; for another process's error its ``line``."""
    if line := getattr(error, "line", ""):
        return str(line)
    frames = [
        (f, n) for f, n in traceback.walk_tb(error.__traceback__) if not f.f_code.co_filename.startswith(_COLLECTIVES)
    ]
    return _describe(*frames[-1]) if frames else "in the call of the program"


def _describe(frame: FrameType, number: int | None = None) -> str:
    number = number or frame.f_lineno
    source = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
    return f"line {number} of {frame.f_code.co_name}" + (f": `{source}`" if source else "")
