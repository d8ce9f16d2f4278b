"""Data-parallel training from scratch: three wrappers with one interface and bit-identical results.

They differ in the plan of their messages and in the time at which these are sent, as the strategies of `dpbook.overlap`
do: `NaiveDDP` sends one message per tensor after backward, `HookDDP` one per tensor during backward, `BucketedDDP` one
per bucket during backward. The plans are those of `dpbook.overlap`, so the simulated step is the real one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpbook.core import InvalidArgument, ReplicasDiffer, check_type
from dpbook.ddp.measurements import specification
from dpbook.ddp.reducer import AllReduce, Reducer, Tally
from dpbook.overlap import CAP, FIRST_CAP, Plan, first_step_plan, per_tensor_plan, plan


def replicate(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank rank 0's parameters and buffers, in place.

    Raises `ReplicasDiffer` on every rank, naming the first difference, if the ranks' modules do not have the same
    parameters and buffers: same names, shapes and dtypes, and the same ones trained.
    """
    check_alike(module, group)
    broadcast([*module.parameters(), *module.buffers()], group)


def check_alike(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Compare the names, shapes and dtypes of parameters and buffers over all ranks; see `replicate`."""
    mine = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        trained = "trained" if tensor.requires_grad else "not trained"
        mine.append(f"{name} {tuple(tensor.shape)} {tensor.dtype}, {trained}")
    found: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(found, mine, group)
    for rank, theirs in enumerate(found):
        if theirs != found[0]:
            pairs = zip([*found[0], "nothing"], [*theirs, "nothing"], strict=False)
            ours, other = next((a, b) for a, b in pairs if a != b)
            found_there = f"rank 0 has {ours}, rank {rank} has {other}"
            raise ReplicasDiffer(f"the modules of ranks 0 and {rank} differ: {found_there}")


def broadcast(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None, source: int = 0) -> None:
    """Copy rank ``source``'s values into every rank's ``tensors``, one message per dtype and device."""
    with torch.no_grad():
        for _, alike in groupby(sorted(tensors, key=_kind), key=_kind):
            batch = list(alike)
            flat = torch.cat([tensor.reshape(-1) for tensor in batch])
            dist.broadcast(flat, group_src=source, group=group)
            for tensor, values in zip(batch, flat.split([t.numel() for t in batch]), strict=True):
                tensor.copy_(values.view_as(tensor))


def _kind(tensor: torch.Tensor) -> tuple[str, str]:
    return str(tensor.dtype), str(tensor.device)


_MARK = "_averaged_over_ranks"
"""Attribute that marks parameters with a wrapper: a second wrapper would average their gradients twice."""


class DDP(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Replicas of ``module``, one per rank of ``group`` (default: all), that stay equal. Use one of its subclasses.

    All ranks begin with rank 0's parameters and buffers. Every backward averages the gradients over the ranks: each is
    multiplied by 1/N and then summed, as torch's DistributedDataParallel does it. Tied parameters count once, frozen
    ones not at all; what is trained must not change later. Gradients are dense. A module that `torch.compile` has
    compiled as a whole delivers them all at the end of backward, where nothing is hidden; one of compiled blocks does
    not.

    Args:
        find_unused: let parameters get no gradient; one that gets none on any rank keeps what it had. It costs a small
            all-reduce per step; on a GPU the host waits for it where this rank has unused parameters. Without it such a
            backward raises `UnusedParameters` on the ranks concerned.
        broadcast_buffers: give every rank rank 0's buffers before a forward in training that follows a synced one, as
            torch does. Evaluation sends nothing, so that one rank may evaluate alone.
        all_reduce: begins to sum a 1-D tensor over the group, in place; default: torch.distributed's.

    Raises `InvalidArgument` for a module without trained parameters or one that is wrapped already, `ReplicasDiffer`
    where the ranks' modules are not alike.
    """

    overlap = True

    def __init__(
        self,
        module: nn.Module,
        *,
        find_unused: bool = False,
        broadcast_buffers: bool = True,
        group: dist.ProcessGroup | None = None,
        all_reduce: AllReduce | None = None,
    ) -> None:
        super().__init__()
        check_type("module", module, nn.Module, "a torch.nn.Module")
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise InvalidArgument("module", type(module).__name__, "a module with parameters that are trained")
        check_not_wrapped(named)
        replicate(module, group)
        self.module, self.group, self.broadcast_buffers = module, group, broadcast_buffers
        self.tensors = tuple(specification(*pair) for pair in named)
        world, usual = dist.get_world_size(group), partial(dist.all_reduce, group=group, async_op=True)
        self._reducer = Reducer(
            named, self.first_plan(find_unused), all_reduce or usual, world,
            overlap=self.overlap, find_unused=find_unused, group=group,
        )  # fmt: skip
        self._after_sync = True
        self._order: tuple[int, ...] = ()
        mark(parameter for _, parameter in named)

    def first_plan(self, find_unused: bool) -> Plan:
        """Return the buckets of the first synced backward."""
        return per_tensor_plan(self.tensors)

    def next_plan(self, order: Sequence[int]) -> Plan | None:
        """Return the buckets from the second backward on, given rank 0's ready ``order``; None keeps the first ones."""
        return None

    @property
    def plan(self) -> Plan:
        """The buckets of the next synced backward."""
        return self._reducer.plan

    @property
    def sent(self) -> Tally:
        """Syncs, calls and bytes so far, of this rank."""
        return self._reducer.sent

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        if torch.is_grad_enabled():
            if self._reducer.enabled:
                self._reducer.forget()
                if self._reducer.sent.syncs and not self._order:
                    self._replan()
            if self.training:
                if self.broadcast_buffers and self._after_sync:
                    broadcast(self.module.buffers(), self.group)
                self._after_sync = self._reducer.enabled
        output = self.module(*args, **kwargs)
        self._reducer.watch(output)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate this rank's gradients; the next backward outside sends their sum. Run forward inside as well."""
        before, self._reducer.enabled = self._reducer.enabled, False
        try:
            yield
        finally:
            self._reducer.enabled = before

    def unwrap(self) -> nn.Module:
        """Remove the hooks and return the module, which is trained alone from then on."""
        for hook in self._reducer.hooks:
            hook.remove()
        unmark(self._reducer.parameters)
        return self.module

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the module's own state without a prefix, so that an unwrapped module can load it."""
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state dict of the wrapped module; call it on every rank."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    @property
    def ready_order(self) -> tuple[int, ...]:
        """Order in which the gradients of the first synced backward became ready on rank 0; () before it.

        Until the second one begins, each rank returns its own order. A checkpoint keeps rank 0's, for `resume_order`.
        """
        return self._order or self._own_order()

    def resume_order(self, order: Sequence[int]) -> None:
        """Use the buckets for a ``ready_order`` from the next backward on: those of the run that it was saved in.

        Every rank calls it with the same one. Raises `InvalidArgument` unless each trained parameter is in it once.
        """
        if sorted(order) != list(range(len(self.tensors))):
            raise InvalidArgument("order", order, f"the numbers of the {len(self.tensors)} trained parameters")
        self._order = tuple(order)
        new = self.next_plan(self._order)
        if new is not None:
            self._reducer.rebuild(new)

    def _own_order(self) -> tuple[int, ...]:
        mine = self._reducer.order
        return (*mine, *sorted(set(range(len(self.tensors))) - set(mine))) if self._reducer.sent.syncs else ()

    def _replan(self) -> None:
        """Adopt the plan for rank 0's ready order on all ranks: their own orders may differ."""
        order = torch.tensor(self._own_order(), device=self._reducer.parameters[0].device)
        broadcast([order], self.group)
        self.resume_order(order.tolist())


class NaiveDDP(DDP):
    """One message per tensor, one after another, when backward is over: nothing overlaps."""

    overlap = False


class HookDDP(DDP):
    """One message per tensor, as soon as its gradient is ready."""


class BucketedDDP(DDP):
    """One message per bucket, as soon as it is full: what torch's DistributedDataParallel does.

    Args:
        cap, first: bytes at which a bucket closes, and the first one, as in `dpbook.overlap.plan`.

    The first synced backward uses one bucket per dtype and device (`overlap.first_step_plan`); later ones follow the
    order in which the gradients of rank 0 became ready then.
    """

    def __init__(self, module: nn.Module, *, cap: int = CAP, first: int | None = FIRST_CAP, **options: Any) -> None:
        self.cap, self.first, self.keep = cap, first, bool(options.get("find_unused"))
        super().__init__(module, **options)

    def first_plan(self, find_unused: bool) -> Plan:
        return first_step_plan(self.tensors, find_unused, self.cap, self.first)

    def next_plan(self, order: Sequence[int]) -> Plan | None:
        return None if self.keep else plan(self.tensors, self.cap, self.first, order)


def mark(parameters: Iterable[nn.Parameter]) -> None:
    """Mark the parameters as wrapped."""
    for parameter in parameters:
        setattr(parameter, _MARK, True)


def unmark(parameters: Iterable[nn.Parameter]) -> None:
    """Mark the parameters as no longer wrapped."""
    for parameter in parameters:
        delattr(parameter, _MARK)


def check_not_wrapped(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `InvalidArgument` if one of the parameters has a wrapper."""
    twice = [name for name, parameter in named if hasattr(parameter, _MARK)]
    if twice:
        raise InvalidArgument("module", f"a module whose {twice[0]} is wrapped", "unwrapped first: wrapper.unwrap()")
