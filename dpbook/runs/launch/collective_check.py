"""Before a collective: do all ranks make the same call? For a run that hangs, or that fails on some ranks only.

`install` puts a check before every collective that Python code calls through torch.distributed. The ranks tell each
other, in the store through which they met, which call comes next, and fail with the difference in words. Collectives
that torch's own C++ code calls, as DistributedDataParallel does in backward, are not seen.
"""

import functools
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dpbook.collectives.programs import line_of_caller
from dpbook.core import INSTALLED, Deadlock, MessageError

ALIKE: dict[str, tuple[str, ...]] = {
    "all_reduce": ("tensor", "op"),
    "reduce": ("tensor", "dst", "op"),
    "broadcast": ("tensor", "src"),
    "all_gather": ("tensor",),
    "all_gather_into_tensor": ("input_tensor",),
    "gather": ("tensor", "dst"),
    "scatter": ("tensor", "src"),
    "reduce_scatter": ("output", "op"),
    "reduce_scatter_tensor": ("output", "op"),
    "all_to_all": (),
    "all_to_all_single": (),
    "barrier": (),
}
"""The collectives, and the arguments that must be alike on all ranks: of a tensor its shape and dtype."""


def install(patience: timedelta) -> None:
    """Check every later collective of this process; a rank that does not come within ``patience`` is named."""
    for name in ALIKE:
        checked = _checked(name, getattr(dist, name), patience)
        setattr(dist, name, checked)
        setattr(distributed_c10d, name, checked)  # torch's own Python code calls it there


def _checked(name: str, collective: Callable[..., Any], patience: timedelta) -> Callable[..., Any]:
    signature = inspect.signature(collective)

    def check_calls(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        group = given.arguments.get("group")
        if dist.get_rank(group) >= 0:  # else torch warns of a group that this rank is not in
            ranks = tuple(dist.get_process_group_ranks(group))
            _agree(_told(name, given.arguments), _line(), ranks, patience)
        return collective(*args, **kwargs)

    check_calls.__code__ = check_calls.__code__.replace(co_name=name)  # what a stack shows of a rank that waits here
    return functools.wraps(collective)(check_calls)


def _line() -> str:
    """Where the program called, not where one function of torch called another."""
    depth, frame = 2, sys._getframe(2)
    while INSTALLED in frame.f_code.co_filename and frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return line_of_caller(depth)


def _told(name: str, arguments: dict[str, Any]) -> str:
    """A call in words, such as "all_reduce of (3,) float32, op SUM"."""
    said = name
    for key in ALIKE[name]:
        value = arguments[key]
        if isinstance(value, torch.Tensor):
            said += f" of {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        elif value is not None:
            said += f", {key} {getattr(value, 'name', value)}"
    return said


_calls: Counter[tuple[int, ...]] = Counter()
"""How many collectives this rank has called so far, by the ranks that take part."""


def _agree(call: str, line: str, ranks: tuple[int, ...], patience: timedelta) -> None:
    """Tell the other ``ranks`` of this rank's next call, and learn of theirs."""
    store, rank = distributed_c10d._get_default_store(), dist.get_rank()
    number = _calls[ranks] = _calls[ranks] + 1

    def key(of: int, which: int) -> str:
        return f"dpbook/call/{ranks}/{which}/{of}"

    store.set(key(rank, number), json.dumps([call, line]))
    for other in ranks:
        try:
            store.wait([key(other, number)], patience)
        except RuntimeError:  # of its kinds, a FileStore raises the plainest
            said = f"rank {rank} is in call {number}, {call}, on {line}; rank {other} has not come"
            raise Deadlock(f"{said}. {_last(store, key(other, number - 1), other)}") from None
        theirs, where = json.loads(store.get(key(other, number)))
        if theirs != call:
            raise MessageError(
                f"call {number} is {call} on rank {rank}, on {line}, but {theirs} on rank {other}, on {where}"
            )
    store.delete_key(key(rank, number - 2))  # all have come to call `number`: nobody reads that any more


def _last(store: dist.Store, key: str, rank: int) -> str:
    if not store.check([key]):
        return f"Rank {rank} has made no call yet"
    call, line = json.loads(store.get(key))
    return f"The last call of rank {rank} was {call}, on {line}"
