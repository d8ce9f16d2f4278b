"""Values between judge and answer: as JSON with arrays by reference, never as a pickle of the answer's; and frames.

Two processes have arrays in common: each has its own memory, and every frame brings the other's up to date. So a
program may write into a slice of a buffer that the other side holds, as if they shared it. An array is named by a
reference: the number of the memory that it lies in, its dtype, where it begins, its shape and strides. A frame on the
socket is a text and the bytes of arrays, read at once where they are small.
"""

import select
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpbook.classroom.tasks.plain_data import MAX_DEPTH, MAX_ITEMS, TOO_LARGE, NotPlain, plain
from dpbook.collectives import Schedule, from_json, to_json
from dpbook.core import DpbookError


def named_value(name: tuple[Any, ...]) -> NoReturn:
    """Stand in a pickle for a value that stays with the judge. The reader puts a function of its own in its place."""
    raise LookupError(name)


_LENGTHS = struct.Struct("<II")
_AT_ONCE = 2**16
MAX_TEXT, MAX_FRAME_BYTES = 2**24, 2**27


class Ended(Exception):
    """The other end has closed the socket."""


class BadFrame(Exception):
    """A frame exceeds the size limit."""


class Frames:
    """One end of a stream socket.

    While nothing comes ``late()`` is called every ``look`` seconds, which may raise.
    """

    def __init__(self, sock: socket.socket, late: Callable[[], None] = lambda: None, look: float | None = None) -> None:
        self._sock, self._late = sock, late
        self._buffer = bytearray()
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
        """Return the next frame. Raises `Ended`, and `BadFrame` for one that is too large."""
        self._fill(_LENGTHS.size)
        text, data = _LENGTHS.unpack_from(self._buffer)
        if text > MAX_TEXT or data > MAX_FRAME_BYTES:
            raise BadFrame(f"{text + data:,} bytes at once, more than the limit of {MAX_FRAME_BYTES:,}")
        begin = _LENGTHS.size + text
        self._fill(begin + data)
        frame, self._buffer = self._buffer[: begin + data], self._buffer[begin + data :]
        return bytes(frame[_LENGTHS.size : begin]), memoryview(frame)[begin:]

    def wait(self) -> None:
        """Wait until data arrives or the other end has closed the socket."""
        while not self._arrivals.poll(self._patience):
            self._late()

    def _fill(self, size: int) -> None:
        """Read until the buffer holds ``size`` bytes. Raises `Ended`."""
        while len(self._buffer) < size:
            self.wait()
            try:
                part = self._sock.recv(min(max(_AT_ONCE, size - len(self._buffer)), 2**20))
            except OSError:
                part = b""
            if not part:
                raise Ended
            self._buffer += part


Array = NDArray[Any]
Reference = list[Any]
KINDS = "biufc"
MAX_ARRAYS, MAX_BYTES = 20_000, 2**28


class _Memory:
    """Memory of arrays: ``find()`` returns its owner, or None once it is gone. The other side has ``known``."""

    __slots__ = "find", "id", "known", "nbytes"

    def __init__(self, owner: Array, weak: bool) -> None:
        self.find: Callable[[], Array | None] = weakref.ref(owner) if weak else lambda: owner
        self.known: bytes | None = None
        self.id, self.nbytes = id(owner), owner.nbytes


class SharedArrays:
    """One side's table. ``ours`` is 0 or 1: numbers of this side are even or odd.

    The side of the answer (``weak``) keeps no array alive, and gives the whole memory that a slice lies in; the other
    one gives what it was asked to give, and no more of it.
    """

    def __init__(self, ours: int, *, weak: bool = False) -> None:
        self._next, self._weak, self._bytes = ours, weak, 0
        self._memories: dict[int, _Memory] = {}
        self._numbers: dict[int, int] = {}  # by id() of the owner
        self._held: list[Array] = []  # until the next frame goes out

    def reference(self, array: Array) -> Reference:
        """Return a reference by which the other side finds ``array``, copied first if its elements have gaps."""
        owner = array
        while self._owner(number := self._numbers.get(id(owner), -1)) is not owner:
            if type(owner.base) is not np.ndarray:  # none in whose memory it lies was registered
                if not (self._weak and _is_whole(owner)):
                    owner = array = array if _is_whole(array) else array.copy()
                number, self._next = self._next, self._next + 2
                self._put(number, owner)
                break
            owner = owner.base
        offset = _address(array) - _address(owner) if array.size else 0
        return [number, array.dtype.str, offset, array.shape, array.strides]

    def _put(self, number: int, owner: Array) -> None:
        self._bytes += owner.nbytes
        if len(self._memories) >= MAX_ARRAYS or self._bytes > MAX_BYTES:
            raise ValueError("too many arrays")
        self._memories[number], self._numbers[id(owner)] = _Memory(owner, self._weak), number
        self._held.append(owner)

    def _owner(self, number: int) -> Array | None:
        memory = self._memories.get(number)
        return memory.find() if memory else None

    def resolve(self, reference: Reference) -> Array:
        """Return the array of a reference. Raises `ValueError`."""
        try:
            number, dtype, offset, shape, strides = reference
            kind = np.dtype(str(dtype))
            owner = self._owner(number)
            if kind.kind not in KINDS or owner is None:
                raise ValueError
            return np.ndarray(tuple(shape), kind, _raw(owner), offset, tuple(strides))
        except (ValueError, TypeError, OverflowError, MemoryError):
            raise ValueError("an invalid array") from None

    def outgoing(self) -> tuple[list[list[int]], list[bytes]]:
        """Return ``[number, bytes]`` of every memory that the other side does not know as it is now, and these bytes.

        Of one that is gone the bytes are -1.
        """
        self._held.clear()
        head, data = [], []
        for number, memory in list(self._memories.items()):
            owner = memory.find()
            if owner is None:
                self._drop(number)
                head.append([number, -1])
                continue
            now = owner.tobytes("A")  # as it lies in memory
            if now != memory.known:
                memory.known = now
                head.append([number, len(now)])
                data.append(now)
            if self._weak:
                self._held.append(owner)
        return head, data

    def incoming(self, head: Any, data: memoryview) -> None:
        """Bring this side up to date with what `outgoing` gave there. Raises `ValueError`."""
        begin = 0
        try:
            for number, length in head:
                if type(number) is not int or type(length) is not int or length < -1:
                    raise ValueError
                if length == -1:
                    self._drop(number)
                    continue
                part, begin = data[begin : begin + length], begin + length
                if len(part) != length:
                    raise ValueError
                self._take(number, part)
        except (ValueError, TypeError):
            raise ValueError("bytes of an unknown array") from None

    def _drop(self, number: int) -> None:
        memory = self._memories.pop(number, None)
        if memory is not None:
            self._bytes -= memory.nbytes
            if self._numbers[memory.id] == number:  # not of another that lies there by now
                del self._numbers[memory.id]

    def _take(self, number: int, part: memoryview) -> None:
        owner = self._owner(number)
        if owner is None:
            if (number - self._next) % 2 == 0:
                raise ValueError
            self._drop(number)
            owner = np.frombuffer(part, np.uint8).copy()
            self._put(number, owner)
        else:
            _raw(owner)[:] = np.frombuffer(part, np.uint8)  # ValueError where the lengths differ
        self._memories[number].known = bytes(part)


def _is_whole(array: Array) -> bool:
    """Whether an array has all the memory between its first and its last element for itself."""
    return type(array) is np.ndarray and (array.flags.c_contiguous or array.flags.f_contiguous)


def _raw(owner: Array) -> NDArray[np.uint8]:
    """Return the memory of an array that `_is_whole`."""
    flat = owner if owner.flags.c_contiguous else owner.T
    return flat.reshape(-1).view(np.uint8) if flat.size else np.empty(0, np.uint8)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_PLAIN_JSON = frozenset({bool, float, str, type(None)})
_BIG = 2**63
KEY, PAGE = 50, 4096
"""A key costs as much as so many items, since keys may be chosen to have one hash; an array as its pages."""
_SEQUENCES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def write(value: Any, arrays: SharedArrays, live: Callable[[Any], dict[str, Any]]) -> Any:
    """Return a form of ``value`` that `json` can write. ``live`` names what is no plain data. Raises `NotPlain`."""
    remaining = MAX_ITEMS

    def written(value: Any, depth: int) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining < 0 or depth < 0:
            raise NotPlain(TOO_LARGE)
        kind = type(value)
        if kind in _PLAIN_JSON or (kind is int and -_BIG < value < _BIG):
            return value
        if kind in (list, tuple, set, frozenset):
            items = [written(item, depth - 1) for item in value]
            return items if kind is list else {kind.__name__: items}
        if kind is dict:
            return {"dict": [[written(key, depth - 1), written(item, depth - 1)] for key, item in value.items()]}
        if kind is np.ndarray and value.dtype.kind in KINDS:
            return {"array": arrays.reference(value)}
        try:
            simple = plain(value)
        except NotPlain:
            return live(value)
        if type(simple) is not kind:
            return written(simple, depth)
        match simple:
            case int():
                return {"int": hex(simple)}
            case complex():
                return {"complex": [simple.real, simple.imag]}
            case bytes():
                return {"bytes": simple.hex()}
            case Schedule():
                return {"schedule": to_json(simple)}
        return {"...": None}

    return written(value, MAX_DEPTH)


def read(message: Any, arrays: SharedArrays, live: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the value that `write` encoded. ``live`` returns the object for a name. Raises `ValueError`."""
    remaining = MAX_ITEMS

    def spend(items: int) -> None:
        nonlocal remaining
        remaining -= items
        if remaining < 0:
            raise ValueError

    def value_of(message: Any, depth: int) -> Any:
        spend(1)
        if depth < 0:
            raise ValueError
        if type(message) is list:
            return [value_of(item, depth - 1) for item in message]
        if type(message) is not dict:
            return message
        ((kind, content),) = message.items()
        if kind in ("set", "frozenset", "dict"):
            spend(KEY * len(content))
        match kind:
            case "tuple" | "set" | "frozenset":
                return _SEQUENCES[kind](value_of(item, depth - 1) for item in content)
            case "dict":
                return {value_of(key, depth - 1): value_of(item, depth - 1) for key, item in content}
            case "array":
                array = arrays.resolve(content)
                spend(array.nbytes // PAGE)
                return array
            case "int":
                return int(content, 16)
            case "complex":
                real, imag = content
                return complex(real, imag)
            case "bytes":
                return bytes.fromhex(content)
            case "schedule":
                return from_json(content)
            case "...":
                return ...
        return live(message)

    try:
        return value_of(message, MAX_DEPTH)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, DpbookError):
        raise ValueError("a message that does not encode a value") from None
