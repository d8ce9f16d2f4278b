"""Memory of the device: tensors whose bytes only kernels see, and a caching allocator.

Bytes are freed when the host drops the last tensor that has them, although queued kernels may still use them. That is
safe on the stream that allocated them, where the next owner's kernels run later. For other streams see `lend`.

The shape of a result is known before its operation has run: torch infers it on "meta" tensors, which have no values.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpbook.book.sim.streams import Stream, current_stream

DEVICE = torch.device("privateuseone", 0)
"""The device, by torch's name for any third-party device; `install` renames it to "sim"."""
ROUNDING = 512
"""Bytes of which every allocation takes a multiple, as in CUDA's allocator."""
TOTAL = 16 * 2**30
"""Bytes of memory that the device reports."""
CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_SET = torch.ops.aten.set_.source_Storage_storage_offset


class Pool:
    """Cache of freed bytes for allocations of the same size on the same stream, with counts of bytes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # memory may be freed by the garbage collector in the middle of an allocation
        self.free: defaultdict[tuple[int, int], list[Any]] = defaultdict(list)
        self.allocated = self.peak = self.reserved = self.peak_reserved = 0

    def take(self, nbytes: int, stream: Stream) -> Any:
        """Return a storage of the CPU with so many bytes."""
        with self.lock:
            self.allocated += nbytes
            self.peak = max(self.peak, self.allocated)
            if cached := self.free[nbytes, stream.stream_id]:
                return cached.pop()
            self.reserved += nbytes
            self.peak_reserved = max(self.peak_reserved, self.reserved)
            return torch.UntypedStorage(nbytes)

    def keep(self, storage: Any, stream: Stream) -> None:
        """Put a freed storage into the cache."""
        with self.lock:
            self.free[storage.nbytes(), stream.stream_id].append(storage)

    def empty_cache(self) -> None:
        """Drop all freed storages."""
        with self.lock:
            self.reserved -= sum(size * len(cached) for (size, _), cached in self.free.items())
            self.free.clear()


POOL = Pool()


class StorageBlock:
    """Bytes of one storage of the device. They belong to the storage, since a tensor may get another storage."""

    def __init__(self, nbytes: int) -> None:
        self.requested = nbytes
        self.size, self.stream = -(-nbytes // ROUNDING) * ROUNDING, current_stream()
        self.borrowers: set[Stream] = set()
        self.bytes = POOL.take(self.size, self.stream)

    def __del__(self) -> None:
        with POOL.lock:
            POOL.allocated -= self.size
        storage, stream, borrowers = self.bytes, self.stream, list(self.borrowers)

        def release() -> None:
            """Visit the borrowers one after another, behind the work that they have queued."""
            if borrowers:
                borrowers.pop().submit(release)
            else:
                POOL.keep(storage, stream)

        release()


class _Carrier(torch.Tensor):  # type: ignore[misc]
    """Subclass that can ask torch for a storage on a device without an allocator in C++; nothing else can."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise AssertionError("no operation may use the carrier of a storage")


def is_on_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE.type


def block_of(tensor: torch.Tensor) -> StorageBlock:
    return tensor.untyped_storage().block  # type: ignore[no-any-return]


def new_storage(nbytes: int) -> Any:
    """Return a new storage of the device."""
    carrier = torch.Tensor._make_wrapper_subclass(_Carrier, (nbytes,), dtype=torch.uint8, device=DEVICE)
    storage = carrier.untyped_storage()
    storage.block = StorageBlock(nbytes)
    return storage


def allocate(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor of the device."""
    new = torch._C._acc.create_empty_tensor([0], dtype)
    return _SET.redispatch(CPU_KERNEL, new, new_storage(extent(size, stride, dtype)), 0, tuple(size), tuple(stride))


def extent(size: Any, stride: Any, dtype: torch.dtype) -> int:
    """Return the bytes from the first element to the end of the last."""
    return dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))) if prod(size) else 0


def resize(tensor: torch.Tensor, size: Any, stride: Any) -> None:
    """Give a tensor another shape, and more memory if it has too little; its values may be lost."""
    storage, needed = tensor.untyped_storage(), extent(size, stride, tensor.dtype)
    if needed > storage.nbytes():
        storage = new_storage(needed)
    _SET.redispatch(CPU_KERNEL, tensor, storage, 0, tuple(size), tuple(stride))


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same bytes as a tensor of the CPU, for a kernel. It does not keep the bytes from being freed."""
    place = tensor.storage_offset(), tuple(tensor.size()), tuple(tensor.stride())
    return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(block_of(tensor).bytes, *place)


def lend(tensor: torch.Tensor, stream: Stream) -> None:
    """Delay the reuse of freed bytes until ``stream`` has done its queued work, as `record_stream` does."""
    block = block_of(tensor)
    if stream != block.stream:
        block.borrowers.add(stream)


class Layout(NamedTuple):
    """Size, strides and dtype of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Outcome(NamedTuple):
    """Inferred results of an operation.

    ``results`` is flat: a number is the place of the argument that is returned, a layout stands for a new tensor.
    ``resized`` are arguments, such as ``out=``, that get another layout. ``spec`` restores the tree of results.
    """

    results: tuple[Layout | int | None, ...]
    resized: tuple[tuple[int, Layout], ...]
    spec: Any


def layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype)


def outcome(op: Any, flat: Sequence[Any], spec: Any) -> Outcome | None:
    """Infer the results of ``op`` on arguments ``flat`` with the tree ``spec``; None if they depend on values.

    Raises torch's error for arguments that do not fit, as a device does when a kernel is launched.
    """
    first: dict[int, int] = {}
    described: list[tuple[Any, Any]] = []
    for position, value in enumerate(flat):
        if is_on_device(value):
            described.append((first.setdefault(id(value), position), layout_of(value)))
        elif isinstance(value, torch.Tensor):
            described.append((None, layout_of(value)))
        elif isinstance(value, torch.device):
            described.append((torch.device, torch.device("meta")))
        elif isinstance(value, torch.Generator):
            described.append((torch.Generator, None))
        else:
            described.append((type(value), value))
    return _outcome(op, tuple(described), spec)


@lru_cache(maxsize=4096)
def _outcome(op: Any, described: tuple[tuple[Any, Any], ...], spec: Any) -> Outcome | None:
    metas: dict[int, torch.Tensor] = {}
    flat = []
    for kind, value in described:
        if not isinstance(value, Layout):
            flat.append(value)
        elif kind is None:  # a tensor of the CPU: a number, or indices
            flat.append(torch.ones(value.size, dtype=value.dtype, device="meta" if value.size else "cpu"))
        else:
            meta = torch.empty_strided(value.size, value.stride, dtype=value.dtype, device="meta")
            flat.append(metas.setdefault(kind, meta))
    args, kwargs = tree_unflatten(flat, spec)
    try:
        returned, spec = tree_flatten(op(*args, **kwargs))
    except NotImplementedError:
        return None
    positions = {id(meta): position for position, meta in metas.items()}
    results = [positions.get(id(x), layout_of(x)) if isinstance(x, torch.Tensor) else None for x in returned]
    resized = [(n, layout_of(meta)) for n, meta in metas.items() if layout_of(meta) != described[n][1]]
    return Outcome(tuple(results), tuple(resized), spec)
