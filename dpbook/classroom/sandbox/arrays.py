"""Arrays that two processes have in common: each has its own memory, and every frame brings the other's up to date.

So a program may write into a slice of a buffer that the other side holds, as if they shared it. An array is named by a
reference: the number of the memory that it lies in, its dtype, where it begins, its shape and strides.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Reference = list[Any]
KINDS = "biufc"
MAX_ARRAYS, MAX_BYTES = 20_000, 2**28


class BadReference(Exception):
    """What came names no array."""


class _Memory:
    """Where arrays lie: ``find()`` is the array that has it, None once that is gone; the other side has ``known``."""

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
        """How the other side finds ``array``. One that has gaps between its elements is copied first."""
        owner, number, array = self._memory(array)
        offset = _address(array) - _address(owner) if array.size else 0
        return [number, array.dtype.str, offset, array.shape, array.strides]

    def _memory(self, array: Array) -> tuple[Array, int, Array]:
        """The registered array in whose memory ``array`` lies (now, if none was), its number, and ``array``."""
        owner = array
        while True:
            number = self._numbers.get(id(owner), -1)
            if self._owner(number) is owner:
                return owner, number, array
            if type(owner.base) is not np.ndarray:
                break
            owner = owner.base
        if not (self._weak and _is_whole(owner)):
            owner = array = array if _is_whole(array) else array.copy()
        number, self._next = self._next, self._next + 2
        self._put(number, owner)
        return owner, number, array

    def _put(self, number: int, owner: Array) -> None:
        self._bytes += owner.nbytes
        if len(self._memories) >= MAX_ARRAYS or self._bytes > MAX_BYTES:
            raise BadReference("too many arrays")
        self._memories[number], self._numbers[id(owner)] = _Memory(owner, self._weak), number
        self._held.append(owner)

    def _owner(self, number: int) -> Array | None:
        memory = self._memories.get(number)
        return memory.find() if memory else None

    def resolve(self, reference: Reference) -> Array:
        """The array of a reference. Raises `BadReference`."""
        try:
            number, dtype, offset, shape, strides = reference
            kind = np.dtype(str(dtype))
            if kind.kind not in KINDS:
                raise ValueError
            owner = self._owner(number)
            if owner is None:
                raise ValueError
            return np.ndarray(tuple(shape), kind, _raw(owner), offset, tuple(strides))
        except (ValueError, TypeError, OverflowError, MemoryError):
            raise BadReference("an array that is none") from None

    def outgoing(self) -> tuple[list[list[int]], list[bytes]]:
        """``[number, bytes]`` of every memory that the other side does not know as it is now, and these bytes.

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
        """Bring this side up to date with what `outgoing` gave there. Raises `BadReference`."""
        begin = 0
        try:
            for number, length in head:
                if type(number) is not int or type(length) is not int:
                    raise ValueError
                if length == -1:
                    self._drop(number)
                    continue
                part, begin = data[begin : begin + length], begin + length
                if length < 0 or len(part) != length:
                    raise ValueError
                self._take(number, part)
        except (ValueError, TypeError):
            raise BadReference("bytes of no array") from None

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
    """The memory of an array that `_is_whole`."""
    flat = owner if owner.flags.c_contiguous else owner.T
    return flat.reshape(-1).view(np.uint8) if flat.size else np.empty(0, np.uint8)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
