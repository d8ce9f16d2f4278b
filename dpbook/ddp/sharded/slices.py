"""Slices of tensors, for torch's distributed checkpoint: saved on N ranks, loaded on M, or where nothing is sharded.

A slice of a row is no rectangle of the tensor that it comes from, but it is made of some: of a matrix the end of a
row, whole rows, and the beginning of one. A checkpoint names each by where it begins and how long it is, so whoever
loads it asks for other boxes of the same tensor and need not know how it was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch

from dpbook.core import InvalidArgument

if TYPE_CHECKING:  # it takes nearly a second to load; who saves or loads a checkpoint has done so
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a part of a tensor begins in each dimension, and its size in each."""


def boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    """The elements from ``begin`` to ``end`` of a tensor of ``shape``, counted row by row, as boxes in their order."""
    if not shape and begin < end:
        yield (), ()
        return
    inner = prod(shape[1:])
    while begin < end:
        row = begin // inner
        if begin == row * inner and (rows := (end - begin) // inner):
            yield (row, *[0] * len(shape[1:])), (rows, *shape[1:])
            begin += rows * inner
        else:
            stop = min(end, (row + 1) * inner)
            for offsets, sizes in boxes(shape[1:], begin - row * inner, stop - row * inner):
                yield (row, *offsets), (1, *sizes)
            begin = stop


class Slice(torch.Tensor):  # type: ignore[misc]  # torch has no types here
    """A tensor of ``shape`` of which this rank has the elements from ``begin`` on: ``local``, 1-D, not copied.

    Torch's distributed checkpoint saves it, at once or from a copy (``async_save``), and loads into it; nothing can be
    computed with it.
    """

    local: torch.Tensor
    parts: dict[tuple[int, ...], torch.Tensor]

    @staticmethod
    def __new__(cls, local: torch.Tensor, shape: Sequence[int], begin: int) -> Self:
        new: Self = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=local.dtype, device=local.device)
        new.local, new.parts = local, {}
        for offsets, sizes in boxes(shape, begin, begin + local.numel()):
            length = prod(sizes)
            new.parts[offsets], local = local[:length].view(sizes), local[length:]
        return new

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:  # asked for while a state is put together
            return args[0]
        if func is torch.ops.aten.new_empty.default:  # by `async_save`, which then copies the attributes
            device = (kwargs or {}).get("device") or args[0].device
            return cls(args[0].local.new_empty(0, device=device), args[1], 0)
        raise InvalidArgument("tensor", "a slice on one of several ranks", "whole; load it from a checkpoint")

    def __repr__(self, **_: Any) -> str:
        return f"Slice({self.local.numel()} of {prod(self.shape)} elements of shape {tuple(self.shape)})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        expected = "of a state for torch.distributed.checkpoint; torch.save takes that of an unwrapped module"
        raise InvalidArgument("tensor", "a slice on one of several ranks", expected)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(at), part.shape) for at, part in self.parts.items()]

    def __create_write_items__(self, fqn: str, tensor: torch.Tensor) -> list[WriteItem]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(self.local)
        return [
            WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD,
                      tensor_data=TensorWriteData(chunk, properties, self.shape))
            for chunk in self.__create_chunk_list__()
        ]  # fmt: skip

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return self.parts[tuple(index.offset or ())]
