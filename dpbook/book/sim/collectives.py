"""Collectives of the device: the backend "simccl", which serves only tensors of the device, as NCCL does.

gloo carries the bytes. Each process group has its own stream, on which its asynchronous collectives run one after
another; a synchronous one runs on the caller's stream, as NCCL's do since torch 2.8. A collective begins when the work
that the caller's stream had queued before it is done, and so are the collectives of its group before it.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, Work
from torch.distributed import device_mesh
from torch.utils._pytree import tree_leaves, tree_map

from dpbook.book.sim.memory import DEVICE, is_on_device, lend, on_cpu
from dpbook.book.sim.patches import patch
from dpbook.book.sim.streams import Event, Stream, current_stream

BACKEND = "simccl"
OPERATIONS = (
    "_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_into_tensor_coalesced_", "allreduce_",
    "allreduce_coalesced_", "alltoall_", "alltoall_base_", "barrier", "broadcast_", "gather_", "recv_",
    "recv_any_source_", "reduce_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_", "scatter_", "send",
)  # fmt: skip
MESSAGES = ("c10d::recv_", "c10d::recv_any_source_", "c10d::send")
NO_LIMIT = timedelta(0)
Stages = Callable[[], Iterator[None]]
"""A collective in two stages: it begins, and it is waited for."""


class Communicator:
    """Counterpart of a process group: gloo's group of the same ranks, and the stream of its collectives."""

    def __init__(self, group: Any, gloo: Any) -> None:
        self.gloo, self.stream = gloo, Stream()
        self.group = ProcessGroup(dist.HashStore(), group.rank(), group.size())
        self.group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        self.group._set_default_backend(ProcessGroup.BackendType.GLOO)


class SimWork(Work):
    """A collective under way. As in NCCL, ``wait`` lets the caller's *stream* wait, and returns at once.

    The host waits only for a barrier, and if there is a time limit.
    """

    def __init__(self, results: Any, blocks: bool) -> None:
        super().__init__()
        self.finished, self.results, self.blocks = Event(), results, blocks
        self.future: torch.futures.Future[Any] = torch.futures.Future()
        _works.append(self)

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        self.finished.wait()
        if (self.blocks or timeout) and not self.finished.synchronize(timeout.total_seconds() or None):
            raise dist.DistBackendError(f"a collective of {BACKEND} timed out after {timeout}")
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.finished.query()

    def result(self) -> Any:
        return self.results

    def get_future(self) -> Any:
        return self.future


_communicators: dict[str, Communicator] = {}
"""Communicators by the name of the process group."""
_works: deque[SimWork] = deque(maxlen=16)
"""The latest works. Until Python receives a work, torch holds only its C++ half, which cannot wait by itself."""


def communicator(group: Any) -> Communicator:
    """Return the communicator of a process group; its first collective makes it. A later group may reuse a name."""
    gloo, existing = group._get_backend(DEVICE), _communicators.get(group.group_name)
    if existing is None or existing.gloo is not gloo:
        existing = _communicators[group.group_name] = Communicator(group, gloo)
    return existing


def register(library: Any) -> None:
    """Register the backend, and its collectives for tensors of the device, with torch.distributed.

    gloo sums such tensors too, as it sums CUDA's: torch asks a group of gloo for its backend of the device. It sends
    and receives none, as it would read CUDA's as memory of the host.
    """
    dist.Backend.register_backend(BACKEND, _gloo, extended_api=True, devices=[DEVICE.type])
    dist.Backend.backend_capability[dist.Backend.GLOO].append(DEVICE.type)
    with warnings.catch_warnings(action="ignore"):  # torch's own implementations are replaced
        for name in OPERATIONS:
            library.impl(name, _collective(getattr(torch.ops.c10d, name).default), allow_override=True)
    patch(dist.distributed_c10d, "batch_isend_irecv", _begin_together)
    dist.batch_isend_irecv = dist.distributed_c10d.batch_isend_irecv
    dist.split_group = dist.distributed_c10d.split_group = device_mesh.split_group = _split_into_new_groups
    patch(torch.futures.Future, "__init__", _remember_devices)
    patch(torch.futures.Future, "set_result", _set_on_stream)


def _gloo(options: Any, _: Any) -> Any:
    return ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)


def _split_into_new_groups(
    parent_pg: Any = None, split_ranks: Any = (), timeout: Any = None, pg_options: Any = None, group_desc: Any = None
) -> Any:
    """Counterpart of `split_group`, as a device mesh calls it: every rank takes part in making all groups.

    torch would copy the options of the parent's backend, and gloo's cannot be copied. While the default group is bound
    to a device, torch would have ranks outside of a group take part in splitting too, as NCCL needs it.
    """
    mine, parent, default = None, dist.get_process_group_ranks(parent_pg or dist.group.WORLD), dist.group.WORLD
    device, default.bound_device_id = default.bound_device_id, None
    try:
        for numbers in split_ranks:
            ranks = [parent[number] for number in numbers]
            group = dist.new_group(ranks, timeout=timeout, group_desc=group_desc)
            mine = group if dist.get_rank() in ranks else mine
    finally:
        default.bound_device_id = device
    return mine


def _remember_devices(initialise: Callable[..., None], future: Any, *, devices: Any = None) -> None:
    initialise(future, devices=devices)
    future.is_of_device = any(torch.device(device).type == DEVICE.type for device in devices or ())


def _set_on_stream(set_result: Callable[..., None], future: Any, result: Any) -> None:
    """Complete a future of this device when the current stream gets there.

    With other devices it completes at once, and streams wait for an event of C++ in it. Here the host waits.
    """
    if getattr(future, "is_of_device", False):
        current_stream().submit(lambda: set_result(future, result))
    else:
        set_result(future, result)


def _collective(op: Any) -> Callable[..., Any]:
    """Return the implementation of ``op`` of torch.distributed for tensors of the device."""
    names = [argument.name for argument in op._schema.arguments]
    position = names.index("process_group")
    returns_tensors = len(op._schema.returns) == 2

    def call(*args: Any) -> Any:
        tensors = [value for value in tree_leaves(args) if isinstance(value, torch.Tensor)]
        if not all(is_on_device(tensor) for tensor in tensors):
            raise ValueError(f"Tensors must be on {DEVICE} and dense: {BACKEND} takes no others")
        group = ProcessGroup.unbox(args[position])
        if op._schema.name in MESSAGES and _serves_the_device(group) == dist.Backend.GLOO:
            raise ValueError(f"gloo does not send or receive tensors on {DEVICE}")
        link = communicator(group)
        work = SimWork(args[0], blocks=op._schema.name == "c10d::barrier")
        twins = list(tree_map(lambda value: on_cpu(value) if is_on_device(value) else value, args))
        twins[position] = link.group.boxed()

        def stages() -> Iterator[None]:
            try:
                begun = tree_leaves(op(*twins))[-1]
                yield
                Work.unbox(begun).wait()
            except Exception as error:
                work.future.set_exception(error)
                raise
            work.future.set_result(args[0])

        is_async = dict(zip(names, args, strict=False)).get("async_op", True)
        _submit(link.stream, op._schema.name, stages, work, is_async)
        for tensor in tensors:
            lend(tensor, link.stream)
        return (args[0], work.boxed()) if returns_tensors else work.boxed()

    return call


def _serves_the_device(group: Any) -> str:
    """Return the name of a group's backend for the device."""
    served = dict(pair.split(":") for pair in str(dist.get_backend_config(group)).split(","))
    return served.get(DEVICE.type, "")


def _submit(group_stream: Stream, name: str, stages: Stages, work: SimWork, is_async: bool) -> None:
    """Queue a collective behind the work of the caller's stream, or add it to the open batch.

    ``group_stream`` is that of the process group. Its collectives begin in the order of the calls on every rank.
    """
    if _batches:
        _batches[-1].append((group_stream, stages, work))
        return
    callers = current_stream()
    stream, other = (group_stream, callers) if is_async else (callers, group_stream)
    stream.wait_stream(other)
    stream.launch(name, lambda: _run([stages]))
    work.finished.record(stream)
    if not is_async:
        group_stream.wait_stream(callers)


def _run(collectives: Sequence[Stages]) -> None:
    """Begin all collectives, then wait for all."""
    running = [stages() for stages in collectives]
    for collective in [*running, *running]:
        next(collective, None)


_batches: list[list[tuple[Stream, Stages, SimWork]]] = []
"""The open batch of messages, if there is one."""


def _begin_together(batch_isend_irecv: Callable[..., Any], p2p_op_list: Sequence[Any]) -> Any:
    """Let the messages of a batch of the device begin together.

    Other messages begin when the one before has ended, so two ranks that both send first would wait for ever.
    """
    if not is_on_device(p2p_op_list[0].tensor):
        return batch_isend_irecv(p2p_op_list)
    _batches.append([])
    try:
        works = batch_isend_irecv(p2p_op_list)
    finally:
        batch = _batches.pop()
    stream = batch[0][0]
    stream.wait_stream(current_stream())
    stream.launch("batch_isend_irecv", lambda: _run([stages for _, stages, _ in batch]))
    for *_, work in batch:
        work.finished.record(stream)
    return works
