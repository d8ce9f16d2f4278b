"""Gradient buckets: the gradients that one collective carries, as torch's DistributedDataParallel (DDP) chooses them.

A plan knows the shape, dtype and device of each gradient, and none of its values. torch 2.13 does the following, by its
source (`torch/nn/parallel/distributed.py`, `reducer.cpp`):

- In the first step all gradients of one dtype and device share *one* bucket, in the order of the parameters, so nothing
  overlaps (`first_step_plan`). With ``find_unused_parameters=True`` torch cuts the parameters at the caps instead, in
  their own order, and reverses the list of buckets. That plan is never rebuilt.
- The first backward records the order in which gradients became ready. Before the second step torch rebuilds the
  buckets from that order, once, with a separate limit for the first bucket (`plan`).
- The first limit is 1 MiB only while ``bucket_cap_mb`` is left at its default of 25. Given a cap, even 25, torch uses
  that cap for the first bucket too: ``first=None`` here. (Older releases kept 1 MiB.)
- Buckets are launched in the order of the plan: a full bucket waits for the ones before it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_each, check_int, check_one_of, listed, plural

ITEMSIZE = {
    **dict.fromkeys(("float64", "int64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 1),
    "complex128": 16,
}
"""Bytes per element, by the name that torch gives a dtype."""


@dataclass(frozen=True)
class Tensor:
    """Specification of a gradient. An int is a ``shape`` of one dimension; ``dtype`` is a name in `ITEMSIZE`.

    ``device`` is any name; equal names are one device.
    """

    name: str
    shape: tuple[int, ...] | int
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, Sequence) else (self.shape,)
        object.__setattr__(self, "shape", tuple(check_int(f"shape of {self.name}", size, 0) for size in shape))
        check_one_of(f"dtype of {self.name}", self.dtype, sorted(ITEMSIZE))

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, whose shape is ()."""
        assert isinstance(self.shape, tuple)  # __post_init__ made it one
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Elements × itemsize."""
        return self.elements * ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class Bucket:
    """Gradients that one collective carries, one after another in one flat buffer of ``elements``.

    ``tensors`` are indices into the plan's tensors, in the order of the buffer; each starts at its offset, in elements.
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
    """Buckets in the order in which they are launched; ``groups[b]`` holds the indices of the tensors in bucket b.

    ``tensors`` are the gradients in the order of the parameters. Raises `InvalidArgument` if a tensor is missing,
    unknown or in two groups, and if a group is empty, or mixes dtypes or devices.
    """

    tensors: tuple[Tensor, ...]
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", check_each("tensors", self.tensors, Tensor))
        object.__setattr__(self, "groups", _check_groups(self.tensors, self.groups))

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Buckets of the groups, with their sizes and layout."""
        buckets = []
        for group in self.groups:
            tensors = [self.tensors[index] for index in group]
            *starts, elements = accumulate((tensor.elements for tensor in tensors), initial=0)
            nbytes = sum(tensor.nbytes for tensor in tensors)
            buckets.append(Bucket(group, tuple(starts), elements, nbytes, tensors[0].dtype, tensors[0].device))
        return tuple(buckets)

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
        """Bucket of each tensor t and its offset there in elements, as ``places[t]``."""
        place = {t: (b, o) for b, at in enumerate(self.buckets) for t, o in zip(at.tensors, at.offsets, strict=True)}
        return tuple(place[t] for t in range(len(self.tensors)))

    def __repr__(self) -> str:
        low, high = int(self.nbytes.min()), int(self.nbytes.max())
        sizes = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return (
            f"Plan: {plural(len(self.tensors), 'tensor')} in {plural(self.calls, 'bucket')} of {sizes} bytes, "
            f"{self.total_bytes:,} bytes in all"
        )


def _check_groups(tensors: Sequence[Tensor], groups: object) -> tuple[tuple[int, ...], ...]:
    """Return ``groups`` as tuples, if they are a partition of the tensors and none mixes dtypes or devices."""
    if not isinstance(groups, Sequence) or not all(isinstance(group, Sequence) for group in groups):
        raise InvalidArgument("groups", groups, "a sequence of groups of tensor indices")
    owner: dict[int, int] = {}
    for b, group in enumerate(groups):
        if not group:
            raise InvalidArgument(f"groups[{b}]", group, "one tensor or more")
        for value in group:
            index = check_int(f"a tensor index in groups[{b}]", value, 0, len(tensors) - 1)
            if index in owner:
                expected = f"without tensor {index}, which is in groups[{owner[index]}]"
                raise InvalidArgument(f"groups[{b}]", group, expected)
            owner[index] = b
        kinds = {(tensors[i].dtype, tensors[i].device) for i in group}
        if len(kinds) > 1:
            shown = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise InvalidArgument(f"groups[{b}]", group, f"tensors of one dtype on one device, not {shown}")
    missing = sorted(set(range(len(tensors))) - set(owner))
    if missing:
        names = listed((f"{i} ({tensors[i].name})" for i in missing), 5)
        raise InvalidArgument("groups", groups, f"a partition of the tensors; missing: {names}")
    return tuple(tuple(int(i) for i in group) for group in groups)


MIB = 2**20
CAP = 25 * MIB
"""Bytes at which a bucket closes, by default."""
FIRST_CAP = MIB
"""Bytes at which the first bucket closes, by default: small, so that communication starts early."""


def plan(
    tensors: Sequence[Tensor], cap: int = CAP, first: int | None = FIRST_CAP, order: Iterable[int] | None = None
) -> Plan:
    """Return the buckets that torch's DDP uses from its second step on.

    Tensors are added as they become ready, and a bucket closes as soon as it holds its limit *or more*. So a bucket may
    exceed the cap, and a tensor larger than the cap closes the bucket it falls into. Each dtype on each device has
    separate buckets, and its own first bucket. Buckets are ordered by the moment they close. Buckets that never close
    are last, in the order of their last members; with several dtypes torch takes the order of a hash table there.

    Args:
        tensors: gradients in the order of the parameters.
        cap, first: bytes at which a bucket and the first bucket close; None means ``cap``, as in torch if it is given.
        order: the indices of ``tensors`` in the order in which their gradients become ready; by default last to first.
    """
    tensors = check_each("tensors", tensors, Tensor)
    count = len(tensors)
    if order is None:
        return Plan(tensors, tuple(_fill(tensors, range(count - 1, -1, -1), _limits(cap, first))))
    indices = [check_int(f"order[{k}]", i, 0, count - 1) for k, i in enumerate(order)]
    if sorted(indices) != list(range(count)):
        raise InvalidArgument("order", indices, f"each index of the {plural(count, 'tensor')} once")
    return Plan(tensors, tuple(_fill(tensors, indices, _limits(cap, first))))


def first_step_plan(
    tensors: Sequence[Tensor], find_unused: bool = False, cap: int = CAP, first: int | None = FIRST_CAP
) -> Plan:
    """Return the buckets of torch's DDP in its first step, before it knows the ready order.

    By default each dtype on each device has one bucket. With ``find_unused`` (torch's ``find_unused_parameters``)
    buckets are cut at ``first`` and ``cap`` in the order of the parameters; the small bucket is then launched last.
    """
    tensors = check_each("tensors", tensors, Tensor)
    limits = _limits(cap, first) if find_unused else [_above_all(tensors)]
    groups = _fill(tensors, range(len(tensors)), limits)
    return Plan(tensors, tuple(sorted(groups, key=min, reverse=True)))


def flat_plan(tensors: Sequence[Tensor]) -> Plan:
    """Return a plan with one bucket for each dtype on each device, the last parameter first."""
    tensors = check_each("tensors", tensors, Tensor)
    return plan(tensors, cap=_above_all(tensors), first=None)


def per_tensor_plan(tensors: Sequence[Tensor], order: Iterable[int] | None = None) -> Plan:
    """Return a plan with one bucket for every tensor, in the order in which gradients become ready."""
    return plan(tensors, cap=0, first=None, order=order)


def _limits(cap: int, first: int | None) -> list[int]:
    cap = check_int("cap", cap, 0)
    return [cap if first is None else check_int("first", first, 0), cap]


def _above_all(tensors: Iterable[Tensor]) -> int:
    """Return a cap that no bucket reaches."""
    return sum(tensor.nbytes for tensor in tensors) + 1


def _fill(tensors: Sequence[Tensor], order: Iterable[int], limits: Sequence[int]) -> list[tuple[int, ...]]:
    """Put tensors into buckets. Bucket k of a dtype and device closes at limit k; the last limit serves all others."""
    closed: list[tuple[int, ...]] = []
    filling: dict[tuple[str, str], tuple[list[int], int]] = {}
    n_closed: dict[tuple[str, str], int] = {}
    for index in order:
        key = tensors[index].dtype, tensors[index].device
        bucket, nbytes = filling.pop(key, ([], 0))  # taken out and put back: `filling` stays sorted by last member
        bucket.append(index)
        nbytes += tensors[index].nbytes
        n_full = n_closed.get(key, 0)
        if nbytes >= limits[min(n_full, len(limits) - 1)]:
            closed.append(tuple(bucket))
            n_closed[key] = n_full + 1
        else:
            filling[key] = bucket, nbytes
    return closed + [tuple(bucket) for bucket, _ in filling.values()]
