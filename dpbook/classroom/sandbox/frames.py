"""Frames on a socket between judge and answer: a text and the bytes of arrays, read at once where they are small."""

import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


def named_value(name: tuple[Any, ...]) -> NoReturn:
    """Stand in a pickle for a value that stays with the judge. The reader puts a function of its own in its place."""
    raise LookupError(name)


_LENGTHS = struct.Struct("<II")
_AT_ONCE = 2**16
MAX_TEXT, MAX_BYTES = 2**24, 2**27


class Ended(Exception):
    """Nobody is at the other end any more."""


class BadFrame(Exception):
    """A frame is larger than any may be."""


class Frames:
    """One end of a stream socket.

    While nothing comes ``late()`` is called every ``look`` seconds, which may raise.
    """

    def __init__(self, sock: socket.socket, late: Callable[[], None] = lambda: None, look: float | None = None) -> None:
        self._sock, self._late = sock, late
        self._rest = b""
        self._patience = None if look is None else 1e3 * look
        self._arrivals = select.poll()  # who waits in recv is also woken when the other end has read what was sent
        self._arrivals.register(sock, select.POLLIN)

    def close(self) -> None:
        self._sock.close()

    def send(self, text: bytes, data: Sequence[bytes] = ()) -> None:
        """Send a frame. Raises `Ended`."""
        joined = b"".join(data)
        try:
            self._sock.sendall(_LENGTHS.pack(len(text), len(joined)) + text + joined)
        except OSError:
            raise Ended from None

    def receive(self) -> tuple[bytes, memoryview]:
        """The next frame. Raises `Ended`, and `BadFrame` for one that is too large."""
        while len(self._rest) < _LENGTHS.size:
            self._rest += self._read(_AT_ONCE)
        text, data = _LENGTHS.unpack_from(self._rest)
        if text > MAX_TEXT or data > MAX_BYTES:
            raise BadFrame(f"{text + data:,} bytes at once, where {MAX_BYTES:,} are allowed")
        parts, size, wanted = [self._rest], len(self._rest), _LENGTHS.size + text + data
        while size < wanted:
            parts.append(self._read(max(_AT_ONCE, wanted - size)))
            size += len(parts[-1])
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        self._rest = whole[wanted:]
        begin = _LENGTHS.size + text
        return whole[_LENGTHS.size : begin], memoryview(whole)[begin:wanted]

    def wait(self) -> None:
        """Until something comes, or nobody is there any more."""
        while not self._arrivals.poll(self._patience):
            self._late()

    def _read(self, most: int) -> bytes:
        self.wait()
        try:
            part = self._sock.recv(min(most, 2**20))
        except OSError:
            part = b""
        if not part:
            raise Ended
        return part
