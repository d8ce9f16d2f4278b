"""Frames on a socket: a head in JSON, a body, and the bytes of arrays one after another."""

import json
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_LENGTHS = struct.Struct("<III")
MAX_HEAD, MAX_BODY, MAX_BYTES = 2**22, 2**25, 2**27


class Ended(Exception):
    """Nobody is at the other end any more."""


class BadFrame(Exception):
    """What came is no frame, or one that is larger than any may be."""


class Frame(NamedTuple):
    """What was sent at once."""

    head: Any
    body: bytes
    data: memoryview


def send(sock: socket.socket, head: Any, body: bytes, data: Sequence[bytes] = ()) -> None:
    """Send a frame. Raises `Ended`."""
    text = json.dumps(head).encode()
    joined = b"".join(data)
    try:
        sock.sendall(_LENGTHS.pack(len(text), len(body), len(joined)) + text + body + joined)
    except OSError:
        raise Ended from None


def receive(sock: socket.socket, wait: Callable[[], None] = lambda: None) -> Frame:
    """The next frame; ``wait`` is called before each read and returns when there is something. Raises `Ended`.

    Raises `BadFrame` for one that is too large or has no JSON as its head.
    """
    lengths = _LENGTHS.unpack(_read(sock, _LENGTHS.size, wait))
    for length, most in zip(lengths, (MAX_HEAD, MAX_BODY, MAX_BYTES), strict=True):
        if length > most:
            raise BadFrame(f"{length:,} bytes at once")
    head, body, data = (_read(sock, length, wait) for length in lengths)
    try:
        return Frame(json.loads(bytes(head)), bytes(body), data)
    except (ValueError, RecursionError):
        raise BadFrame("a head that is no JSON") from None


def _read(sock: socket.socket, length: int, wait: Callable[[], None]) -> memoryview:
    read, view = 0, memoryview(bytearray(length))
    while read < length:
        wait()
        try:
            count = sock.recv_into(view[read:])
        except OSError:
            count = 0
        if not count:
            raise Ended
        read += count
    return view
