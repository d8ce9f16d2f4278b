"""A free port that stays free until the process that it is meant for listens on it."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A TCP port that nobody else is given while the block runs, and on which any process may listen.

    Between the moment when a free port is chosen and the one in which a process that has still to load torch listens on
    it, the system may give it to any other connection. Linux does not where a socket that may share its port is bound
    to it and does not listen. Elsewhere the port is only chosen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        port = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port
