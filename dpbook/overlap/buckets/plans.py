"""Which gradients travel together: a plan of buckets, as torch's DistributedDataParallel (DDP) makes it.

What torch 2.13 does, by its source (`torch/nn/parallel/distributed.py`, `reducer.cpp`):

- In the first step every gradient of one dtype and device is in *one* bucket, in the order of the parameters, so
  nothing overlaps (`first_step_plan`). With ``find_unused_parameters=True`` the parameters are cut at the caps
  instead, in their own order, the list of buckets is reversed, and that plan stays for good.
- The first backward records the order in which gradients became ready. Before the second step the buckets are rebuilt
  from that order, once, with a first bucket of its own limit (`plan`).
- The first limit is 1 MiB only while ``bucket_cap_mb`` is left at its default of 25; given a cap, even 25, torch
  uses that cap for the first bucket too: ``first=None`` here. (Older releases kept 1 MiB.)
- Buckets are launched in the order of the plan: a bucket that is full waits for the ones before it.
"""

from collections.abc import Iterable, Sequence

from dpbook.core import InvalidArgument, check_each, check_int, plural
from dpbook.overlap.buckets.layout import Plan
from dpbook.overlap.buckets.tensors import Tensor

MIB = 2**20
CAP = 25 * MIB
"""Bytes at which a bucket closes, by default."""
FIRST_CAP = MIB
"""Bytes at which the first bucket closes, by default: small, so that the wire gets to work early."""


def plan(
    tensors: Sequence[Tensor], cap: int = CAP, first: int | None = FIRST_CAP, order: Iterable[int] | None = None
) -> Plan:
    """Return the buckets that torch's DDP uses from its second step on.

    Tensors are taken as they become ready; a bucket closes as soon as it holds its limit *or more*. So a bucket may
    exceed the cap, and a tensor larger than the cap closes the bucket it falls into. Each dtype on each device fills
    buckets of its own, with a first one of its own. Buckets come in the order in which they close; those that never
    do are last, in the order of their last members. (There torch follows a hash table; with one dtype there is one.)

    Args:
        tensors: in the order of the parameters.
        cap: bytes at which a bucket closes.
        first: bytes at which the first bucket closes; None for ``cap``, as torch has it once it is given a cap.
        order: the indices of ``tensors`` as their gradients become ready; by default from the last to the first.
    """
    tensors = check_each("tensors", tensors, Tensor)
    return Plan(tensors, tuple(_fill(tensors, _check_order(len(tensors), order), _limits(cap, first))))


def first_step_plan(
    tensors: Sequence[Tensor], find_unused: bool = False, cap: int = CAP, first: int | None = FIRST_CAP
) -> Plan:
    """Return the buckets of torch's DDP in its first step, when it does not know the ready order yet.

    By default one bucket for each dtype on each device. With ``find_unused`` (torch's ``find_unused_parameters``)
    buckets are cut at ``first`` and ``cap`` in the order of the parameters; the small one then goes out last.
    """
    tensors = check_each("tensors", tensors, Tensor)
    limits = _limits(cap, first) if find_unused else [_above_all(tensors)]
    groups = _fill(tensors, range(len(tensors)), limits)
    return Plan(tensors, tuple(sorted(groups, key=min, reverse=True)))


def flat_plan(tensors: Sequence[Tensor]) -> Plan:
    """Return one bucket of everything: one for each dtype on each device, the last parameter first."""
    tensors = check_each("tensors", tensors, Tensor)
    return plan(tensors, cap=_above_all(tensors), first=None)


def per_tensor_plan(tensors: Sequence[Tensor], order: Iterable[int] | None = None) -> Plan:
    """Return a bucket for every tensor, in the order in which they become ready."""
    return plan(tensors, cap=0, first=None, order=order)


def _limits(cap: int, first: int | None) -> list[int]:
    cap = check_int("cap", cap, 0)
    return [cap if first is None else check_int("first", first, 0), cap]


def _above_all(tensors: Iterable[Tensor]) -> int:
    """A cap that no bucket reaches."""
    return sum(tensor.nbytes for tensor in tensors) + 1


def _fill(tensors: Sequence[Tensor], order: Iterable[int], limits: Sequence[int]) -> list[tuple[int, ...]]:
    """Put tensors into buckets, which close at the first, second, … limit; the last one holds for the rest."""
    closed: list[tuple[int, ...]] = []
    filling: dict[tuple[str, str], tuple[list[int], int]] = {}
    n_closed: dict[tuple[str, str], int] = {}
    for index in order:
        key = tensors[index].dtype, tensors[index].device
        bucket, nbytes = filling.pop(key, ([], 0))  # taken out and put back: `filling` stays sorted by last member
        bucket.append(index)
        nbytes += tensors[index].nbytes
        done = n_closed.get(key, 0)
        if nbytes >= limits[min(done, len(limits) - 1)]:
            closed.append(tuple(bucket))
            n_closed[key] = done + 1
        else:
            filling[key] = bucket, nbytes
    return closed + [tuple(bucket) for bucket, _ in filling.values()]


def _check_order(count: int, order: Iterable[int] | None) -> Iterable[int]:
    if order is None:
        return range(count - 1, -1, -1)
    indices = tuple(check_int(f"order[{k}]", i, 0, count - 1) for k, i in enumerate(order))
    if len(indices) != count or len(set(indices)) != count:
        raise InvalidArgument("order", list(indices), f"each index of the {plural(count, 'tensor')} once")
    return indices
