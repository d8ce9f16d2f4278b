"""Units: modules that are gathered as one, their parameters, and the slices of these in a checkpoint.

A slice of a row is no rectangle of the tensor that it comes from, but it consists of some: of a matrix the end of a
row, whole rows, and the beginning of one. A checkpoint names each by its offset and its lengths. It is saved on N ranks
and loaded on M, or where nothing is sharded: the loading program asks for other boxes of the same tensor, and need not
know how it was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import nn

from dpbook.core import InvalidArgument

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and length of a part of a tensor in each dimension."""


def boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    """Return the elements ``begin`` to ``end`` of a tensor of ``shape``, in row-major order, as boxes in that order."""
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


Units = Iterable[nn.Module] | Callable[[nn.Module], bool]
"""Modules, or a rule that says of a module whether it is a unit."""


@dataclass(frozen=True)
class Member:
    """A parameter of a unit, with all its names and all modules that have it; a tied parameter has several."""

    names: tuple[str, ...]
    parameter: nn.Parameter
    places: tuple[tuple[nn.Module, str], ...]

    @property
    def name(self) -> str:
        """First of the parameter's names."""
        return self.names[0]


@dataclass(frozen=True)
class Share:
    """A module that is a unit, and its parameters without those of units inside it."""

    name: str
    module: nn.Module
    members: tuple[Member, ...]


def divide(root: nn.Module, units: Units | None) -> list[Share]:
    """Give every parameter of ``root`` to the innermost unit around it; a tied one to that around all its places.

    ``root`` is a unit of its own, the first in the list; units without a parameter are left out. Raises
    `InvalidArgument` for modules that are not part of ``root``, and for lists of modules, whose forward is never
    called.
    """
    chosen = {root, *_chosen(root, units)}
    names: dict[nn.Module, str] = {}
    around: dict[nn.Parameter, tuple[nn.Module, ...]] = {}
    places: dict[nn.Parameter, dict[str, tuple[nn.Module, str]]] = {}
    for name, module, outer in _walk(root, "", (), chosen):
        if module in chosen:
            names.setdefault(module, name)
        for own, parameter in module._parameters.items():
            if parameter is not None:
                pairs = zip(around.get(parameter, outer), outer, strict=False)
                around[parameter] = tuple(unit for unit, _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
                places.setdefault(parameter, {})[f"{name}.{own}".lstrip(".")] = module, own
    members: dict[nn.Module, list[Member]] = {module: [] for module in names}
    for parameter, where in places.items():
        members[around[parameter][-1]].append(Member(tuple(where), parameter, tuple(dict.fromkeys(where.values()))))
    return [Share(names[module], module, tuple(own)) for module, own in members.items() if own or module is root]


def _chosen(root: nn.Module, units: Units | None) -> list[nn.Module]:
    if units is None:
        return []
    inside = list(root.modules())
    listed = [module for module in inside if units(module)] if callable(units) else list(units)
    for module in listed:
        if not any(module is other for other in inside):
            raise InvalidArgument("units", type(module).__name__, "modules inside the one that is wrapped")
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            expected = "modules whose forward is called; name what is in the list, not the list"
            raise InvalidArgument("units", type(module).__name__, expected)
    return listed


def _walk(
    module: nn.Module, name: str, outer: tuple[nn.Module, ...], chosen: set[nn.Module]
) -> Iterator[tuple[str, nn.Module, tuple[nn.Module, ...]]]:
    """Yield every module by every path that leads to it, with the units around it from outside to inside."""
    outer = (*outer, module) if module in chosen else outer
    yield name, module, outer
    for own, child in module._modules.items():  # `named_children` leaves out a module that comes again
        if child is not None:
            yield from _walk(child, f"{name}.{own}".lstrip("."), outer, chosen)
