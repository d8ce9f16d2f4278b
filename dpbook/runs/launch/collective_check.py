"""Check before every collective that all ranks make the same call, for a run that hangs or fails on some ranks only.

`install` puts a check before every collective that Python code calls through torch.distributed. The ranks exchange
their next call through the store in which they met, and raise an error that shows the difference. Collectives that
torch's C++ code calls, as DistributedDataParallel does in backward, are not checked.
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

from dpbook.core import INSTALLED, Deadlock, MessageError, rebind_names
from dpbook.ranks import stacks

COMPARED_ARGUMENTS: dict[str, tuple[str, ...]] = {
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
"""The collectives, and the arguments that must be equal on all ranks; of a tensor its shape and dtype."""


def install(timeout: timedelta) -> None:
    """Check every later collective of this process; a rank that does not join within ``timeout`` is named."""
    replaced = []
    for name in COMPARED_ARGUMENTS:
        checked = _checked(name, getattr(dist, name), timeout)
        replaced.append((getattr(dist, name), checked))
        setattr(dist, name, checked)
        setattr(distributed_c10d, name, checked)  # torch's own Python code calls it there
    rebind_names(replaced)  # which a script that starts its ranks itself has imported already


def _checked(name: str, collective: Callable[..., Any], timeout: timedelta) -> Callable[..., Any]:
    signature = inspect.signature(collective)

    def check_calls(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        group = bound.arguments.get("group")
        if dist.get_rank(group) >= 0:  # else torch warns about a group without this rank
            ranks = tuple(dist.get_process_group_ranks(group))
            _compare(_describe(name, bound.arguments), _program_line(), ranks, timeout)
        return collective(*args, **kwargs)

    # The stack of a rank that waits here names the code object: it must show the collective.
    check_calls.__code__ = check_calls.__code__.replace(co_name=name)
    return functools.wraps(collective)(check_calls)


def _program_line() -> str:
    """Return the line on which the program called the collective, past functions of torch that call one another."""
    frame = sys._getframe(2)
    while INSTALLED in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    return stacks.line_in_words(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _describe(name: str, arguments: dict[str, Any]) -> str:
    """Return a call in words, such as "all_reduce of (3,) float32, op SUM"."""
    words = name
    for key in COMPARED_ARGUMENTS[name]:
        value = arguments[key]
        if isinstance(value, torch.Tensor):
            words += f" of {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        elif value is not None:
            words += f", {key} {getattr(value, 'name', value)}"
    return words


_counts: Counter[tuple[int, ...]] = Counter()
"""Number of collectives that this rank has called so far, by the ranks of the group."""


def _compare(call: str, line: str, ranks: tuple[int, ...], timeout: timedelta) -> None:
    """Publish this rank's next call in the store, and compare it with those of the other ``ranks``."""
    store, rank = distributed_c10d._get_default_store(), dist.get_rank()
    number = _counts[ranks] = _counts[ranks] + 1

    def key(of_rank: int, of_call: int) -> str:
        return f"dpbook/call/{ranks}/{of_call}/{of_rank}"

    store.set(key(rank, number), json.dumps([call, line]))
    for other in ranks:
        try:
            store.wait([key(other, number)], timeout)
        except RuntimeError:  # a FileStore raises no more special type
            waiting = f"rank {rank} is in call {number}, {call}, at {line}; rank {other} has not joined it"
            last = f"Rank {other} has made no call yet"
            if store.check([key(other, number - 1)]):
                last_call, last_line = json.loads(store.get(key(other, number - 1)))
                last = f"The last call of rank {other} was {last_call}, at {last_line}"
            raise Deadlock(f"{waiting}. {last}") from None
        other_call, other_line = json.loads(store.get(key(other, number)))
        if other_call != call:
            here, there = f"{call} on rank {rank}, at {line}", f"{other_call} on rank {other}, at {other_line}"
            raise MessageError(f"call {number} is {here}, but {there}")
    store.delete_key(key(rank, number - 2))  # all ranks have reached call `number`: none reads that any more
