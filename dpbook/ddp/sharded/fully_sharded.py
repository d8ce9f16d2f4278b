"""ZeRO stage 3 from scratch: a rank keeps one piece of the weights, and whole weights of a unit while it computes.

The state of model and optimizer goes by the names of the parameters, for torch's distributed checkpoint. Sources:
Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020; Zhao
et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from dpbook.core import InvalidArgument, check_float, check_int, check_type
from dpbook.ddp.sharded.passes import Passes, Reducing, in_backward
from dpbook.ddp.sharded.row import Half, Row
from dpbook.ddp.sharded.row import all_gather as group_all_gather
from dpbook.ddp.sharded.row import reduce_scatter as group_reduce_scatter
from dpbook.ddp.sharded.unit import Observer, Unit, check_unchanged
from dpbook.ddp.sharded.units import Member, Units, divide
from dpbook.ddp.wrappers import broadcast, check_alike, check_not_wrapped, mark, unmark


def _begin(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Make the optimizer create missing state of trained ``parameters``, by a step that changes nothing else.

    Loading a checkpoint needs the state of all parameters, even of those that had no gradient when it was saved. For
    SGD, Adagrad, Adam and AdamW the created state equals no state: zeros or initial values, and step 0.
    """
    if not parameters:
        return
    groups, kept = optimizer.param_groups, [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
    options = [{name: group[name] for name in ("lr", "weight_decay") if name in group} for group in groups]
    for p, _ in kept:
        p.grad = None
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    for group, own in zip(groups, options, strict=True):
        group.update(dict.fromkeys(own, 0.0))
    optimizer.step()
    for p, gradient in kept:
        p.grad = gradient
    for group, own in zip(groups, options, strict=True):
        group.update(own)
    for p in parameters:
        if isinstance(step := optimizer.state.get(p, {}).get("step"), torch.Tensor):
            step.zero_()


class ShardedState:
    """A sharded model and its optimizer, as torch's distributed checkpoint takes them: it is `Stateful`.

    torch.distributed.checkpoint.save({"app": ShardedState(model, optimizer)}, checkpoint_id=folder), and ``load`` with
    the same dict, on any number of ranks.
    """

    def __init__(self, model: "FullySharded", optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, or to fill by loading."""
        return {"model": self.model.state_dict(), "optim": self.model.optimizer_state(self.optimizer)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Apply the loaded options of the parameter groups; the loaded values are already in place."""
        self.model.load_state_dict(state_dict["model"])
        loaded = state_dict["optim"]["param_groups"]
        for group, found in zip(self.optimizer.param_groups, loaded, strict=True):
            group.update({key: value for key, value in found.items() if key != "params"})


class FullySharded(nn.Module):  # type: ignore[misc]  # torch has no types here
    """``module`` shared out over the ranks of ``group`` (default: all): each keeps 1/N of every unit's parameters.

    All ranks begin with rank 0's parameters and buffers. A unit's whole weights are gathered before its forward and
    again before its backward, and freed after each; its gradients are averaged over the ranks during backward, and each
    rank keeps its piece. A parameter stays the object that it was and becomes a 1-D slice of this rank's shard, empty
    where the shard has nothing of it, so any elementwise optimizer trains it, made before or after; its gradient is
    that of the slice. What depends on the shape of parameters is asked before wrapping. What depends on all gradients
    has to be made of all ranks' parts: `clip_grad_norm_` does so, a plain `torch.amp.GradScaler` does not, and skips a
    step on those ranks alone whose shard has overflown. There is no backward through a backward (``create_graph``).
    Tied parameters belong to the unit around all their places. Every rank runs the same units in the same order; a unit
    of which no weight gets a gradient keeps what it had, and a weight that gets none beside others that do counts as 0.
    Activations may be recomputed (`torch.utils.checkpoint`).

    Args:
        module: on the device on which it will run, its parameters contiguous.
        units: modules inside it that are gathered one by one, or a rule that says of a module whether it is one. What
            is in none of them belongs to ``module`` itself, which is gathered from its forward to its backward.
        across: the ranks that hold the same shards as this one (hybrid sharding): gradients are summed within
            ``group``, then across. None where there are no others.
        dtype: of the weights to compute with, such as torch.bfloat16: they travel in it, and inputs of floating point
            are converted. Shards, their gradients and the sums over ranks keep the dtype of the parameters.
        reshard_after_forward: False keeps the whole weights from forward to backward: one gather less, so in one
            micro-batch the bytes of ZeRO's stage 2. Between steps shards alone are kept, and every forward gathers.
        prefetch: how many units are gathered ahead of the one that computes.
        all_gather, reduce_scatter: begin a half of an all-reduce over ``group`` in place; default: torch.distributed's.
        observer: is called with every `UnitEvent`.

    Raises `InvalidArgument` for a module that is wrapped already and for units that cannot be, and in a forward where
    parameters were since added, replaced, moved, converted, frozen or thawed, or have hooks; `ReplicasDiffer` where the
    ranks' modules are not alike, and in a step `DpbookError` where a parameter is used outside its unit or has changed
    between forward and backward.
    """

    def __init__(
        self, module: nn.Module, *, units: Units | None = None, group: dist.ProcessGroup | None = None,
        across: dist.ProcessGroup | None = None, dtype: torch.dtype | None = None, reshard_after_forward: bool = True,
        prefetch: int = 1, all_gather: Half | None = None, reduce_scatter: Half | None = None,
        observer: Observer | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_type("module", module, nn.Module, "a torch.nn.Module")
        check_not_wrapped(list(module.named_parameters()))
        check_int("prefetch", prefetch, 0)
        self.module, self.group, self.across, self.dtype = module, group, across, dtype
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if self.world < 1:
            raise InvalidArgument("group", group, "one that this rank belongs to")
        shares = divide(module, units)
        groups = [group] if across is None else [group, across]
        for ranks in groups:
            check_alike(module, ranks)
            broadcast(module.buffers(), ranks)
        gathering = all_gather or group_all_gather(group)
        self.units = [Unit(share, dtype, self.rank, self.world, gathering, observer) for share in shares]
        for unit in self.units:
            unit.contains_units = any(u.module in unit.module.modules() for u in self.units if u is not unit)
            for row in unit.rows:
                row.share_out(groups)
        replicas = 1 if across is None else dist.get_world_size(across)
        summing = None if across is None else partial(dist.all_reduce, group=across, async_op=True)
        reducing = reduce_scatter or group_reduce_scatter(group)
        self._reducing = Reducing(self.units, reducing, summing, self.world * replicas)
        self._passes = Passes(self.units, self._reducing, dtype, reshard_after_forward, prefetch)
        mark(module.parameters())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        if in_backward():  # activations are computed once more
            return self.module(*args, **kwargs)
        check_unchanged(self.module, self.units)
        with self._passes.forward():
            return self.module(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        expected = "copied before it is wrapped, or made again and loaded from its state"
        raise InvalidArgument("module", "a sharded one, whose ranks and hooks no copy would have", expected)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let this rank's gradients add up; the next backward outside sends their sum. Forward belongs inside too.

        Until then every rank keeps whole gradients of all units, so N times the memory; weights are gathered as ever.
        """
        before, self._reducing.enabled = self._reducing.enabled, False
        try:
            yield
        finally:
            self._reducing.enabled = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, including the whole ones that `no_sync` keeps; an optimizer knows only the shards'."""
        self._passes.recover()
        super().zero_grad(set_to_none)
        self._reducing.forget()

    def unwrap(self) -> nn.Module:
        """Remove the hooks and return the module, whole on every rank; all ranks call it. It has no gradients."""
        self._passes.remove()
        for unit in self.units:
            for row in unit.rows:
                row.join(unit.all_gather)
            unit.show_shards()
        unmark(self.module.parameters())
        return self.module

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state under the module's own names; a parameter is a `Slice`, for torch's distributed checkpoint.

        As part of another module's state they have its ``prefix``.
        """
        self._passes.recover()
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        for row, index, member in self._members():
            own = row.slice_of(index, member.parameter.detach())
            state |= {kwargs.get("prefix", "") + name: own for name in member.names}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a `state_dict` that a checkpoint has filled, or the whole state of a module that is not sharded.

        Every rank calls it. Raises the module's own errors, and `InvalidArgument` for a tensor of another shape
        and for ``assign=True``: parameters stay slices of the shard.
        """
        if kwargs.get("assign") or any(args[1:]):
            raise InvalidArgument("assign", True, "False: what is loaded is written into the shards")
        self._passes.recover()
        pieces = {
            name: row.piece_of(index, name, state_dict[name])
            for row, index, member in self._members()
            for name in member.names
            if name in state_dict
        }
        return self.module.load_state_dict({**state_dict, **pieces}, *args, **kwargs)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an ``optimizer`` by parameter names; state with one value per element is a `Slice`.

        It has the form of torch's `get_optimizer_state_dict`. What a checkpoint loads into it is in the optimizer, but
        for options such as ``lr``: see `ShardedState`. A parameter that had no gradient yet, and so no state, is given
        the state of no step. Raises `InvalidArgument` where the optimizer has a parameter of something else.
        """
        members = {member.parameter: (row, index, member.name) for row, index, member in self._members()}
        listed = [p for group in optimizer.param_groups for p in group["params"]]
        if others := [p for p in listed if p not in members]:
            expected = "of the parameters of this module, and of no others"
            raise InvalidArgument("optimizer", f"one with a parameter of shape {tuple(others[0].shape)}", expected)
        _begin(optimizer, [p for p in listed if p not in optimizer.state])
        states: dict[str, dict[str, Any]] = {}
        for p, kept in optimizer.state.items():
            row, index, name = members[p]
            per_element = {k: row.slice_of(index, v) for k, v in kept.items() if getattr(v, "shape", None) == p.shape}
            states[name] = {**kept, **per_element}
        groups = [{**group, "params": [members[p][2] for p in group["params"]]} for group in optimizer.param_groups]
        return {"state": states, "param_groups": groups}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients so that their norm over all ranks is at most ``max_norm``; return the norm before.

        The norm is that of all gradients together, a 0-D float32 tensor, alike on all ranks: squares are summed over
        the shards of this rank, then over the ranks. The factor is torch's, max_norm / (norm + 1e-6), 1 at most.
        """
        if max_norm != inf:  # which asks for the norm alone
            check_float("max_norm", max_norm, minimum=0)
        rows = [row for unit in self.units for row in unit.rows]
        if not rows:  # on no rank
            return torch.zeros(())
        gradients = [m.parameter.grad for row in rows for m in row.members if m.parameter.grad is not None]
        squares = torch.zeros((), dtype=torch.float32, device=rows[0].shard.device)
        for gradient in gradients:
            squares += torch.linalg.vector_norm(gradient, dtype=torch.float32).square().to(squares.device)
        dist.all_reduce(squares, group=self.group)
        norm = squares.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device))
        return norm

    def _members(self) -> Iterator[tuple[Row, int, Member]]:
        return (
            (row, index, member) for unit in self.units for row in unit.rows for index, member in enumerate(row.members)
        )
