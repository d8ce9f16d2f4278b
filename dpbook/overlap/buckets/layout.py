"""Buckets, and where each gradient lies in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_each, check_int, plural
from dpbook.overlap.buckets.tensors import Tensor


@dataclass(frozen=True)
class Bucket:
    """Gradients that go out in one call, one after another in one flat buffer.

    Attributes:
        tensors: their indices in the plan's tensors, in the order in which they lie in the buffer.
        offsets: where each begins in the buffer, in elements.
        elements: length of the buffer.
        nbytes: its size in bytes.
        dtype, device: of all of them.
    """

    tensors: tuple[int, ...]
    offsets: tuple[int, ...]
    elements: int
    nbytes: int
    dtype: str
    device: str

    def __repr__(self) -> str:
        return f"Bucket({plural(len(self.tensors), 'tensor')}, {self.nbytes:,} bytes of {self.dtype} on {self.device})"


@dataclass(frozen=True)
class Plan:
    """Buckets in the order in which they are launched; every tensor is in exactly one.

    Attributes:
        tensors: in the order of the parameters.
        groups: ``groups[b]``, the indices of the tensors in bucket b.

    Raises:
        InvalidArgument: a tensor is missing, in two places or unknown; a group is empty, or mixes dtypes or devices.
    """

    tensors: tuple[Tensor, ...]
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", check_each("tensors", self.tensors, Tensor))
        object.__setattr__(self, "groups", _check_groups(self.tensors, self.groups))

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The groups with their sizes and layout."""
        return tuple(_bucket(self.tensors, group) for group in self.groups)

    @property
    def calls(self) -> int:
        """Collectives per sync: one per bucket."""
        return len(self.groups)

    @cached_property
    def nbytes(self) -> NDArray[np.int64]:
        """Bytes of each bucket, of shape (calls,)."""
        return np.array([bucket.nbytes for bucket in self.buckets], dtype=np.int64)

    @property
    def total_bytes(self) -> int:
        """Bytes of all gradients: the payload of a sync, whatever the plan."""
        return int(self.nbytes.sum())

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """``places[t]``: the bucket of tensor t and its offset there, in elements."""
        found = {t: (b, o) for b, at in enumerate(self.buckets) for t, o in zip(at.tensors, at.offsets, strict=True)}
        return tuple(found[t] for t in range(len(self.tensors)))

    def __repr__(self) -> str:
        low, high = int(self.nbytes.min()), int(self.nbytes.max())
        sizes = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return (
            f"Plan: {plural(len(self.tensors), 'tensor')} in {plural(self.calls, 'bucket')} of {sizes} bytes, "
            f"{self.total_bytes:,} bytes in all"
        )


def _bucket(tensors: Sequence[Tensor], group: tuple[int, ...]) -> Bucket:
    ends = np.cumsum([tensors[i].elements for i in group])
    head = tensors[group[0]]
    nbytes = sum(tensors[i].nbytes for i in group)
    return Bucket(group, (0, *ends[:-1].tolist()), int(ends[-1]), nbytes, head.dtype, head.device)


def _check_groups(tensors: Sequence[Tensor], groups: object) -> tuple[tuple[int, ...], ...]:
    """Return ``groups`` as tuples, or raise `InvalidArgument` unless they are a partition into groups of one kind."""
    if not isinstance(groups, Sequence) or not all(isinstance(group, Sequence) for group in groups):
        raise InvalidArgument("groups", groups, "a sequence of groups of tensor indices")
    owner: dict[int, int] = {}
    for b, group in enumerate(groups):
        if not group:
            raise InvalidArgument(f"groups[{b}]", group, "one tensor or more")
        for value in group:
            index = check_int(f"a tensor index in groups[{b}]", value, 0, len(tensors) - 1)
            if index in owner:
                raise InvalidArgument(
                    f"groups[{b}]", group, f"without tensor {index}, which is in groups[{owner[index]}]"
                )
            owner[index] = b
        kinds = {(tensors[i].dtype, tensors[i].device) for i in group}
        if len(kinds) > 1:
            shown = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise InvalidArgument(f"groups[{b}]", group, f"tensors of one dtype on one device, not {shown}")
    missing = sorted(set(range(len(tensors))) - set(owner))
    if missing:
        names = ", ".join(f"{i} ({tensors[i].name})" for i in missing[:5])
        raise InvalidArgument("groups", groups, f"a partition of the tensors; it leaves out {names}")
    return tuple(tuple(int(i) for i in group) for group in groups)
