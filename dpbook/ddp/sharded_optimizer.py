"""ZeRO stage 1: every rank keeps the optimizer state of its own share of the parameters, and updates only that.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
2020.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from dpbook.collectives import chunk_bounds
from dpbook.core import InvalidArgument


class ShardedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch has no types here
    """An elementwise optimizer, such as SGD, Adam or AdamW, whose state is shared out over the ranks.

    Each parameter group is seen as one flat row of elements, cut evenly over the ranks of ``group``: rank r has the
    r-th piece of it as its own parameters (slices, which may begin and end inside a tensor). ``step`` updates these and
    then gathers everyone's, so that the result has the bits of the unsharded optimizer. Gradients must be averaged
    before, by a wrapper of `dpbook.ddp.wrappers` or torch's DistributedDataParallel; all parameters have one dtype
    and device within a group. An optimizer that looks at whole tensors, such as one with layer-wise norms, gives other
    results. Learning-rate schedulers act on ``param_groups`` as usual.

    What is *kept* of the state falls to 1/N; the peak of a step does not. While a group is gathered, ``step`` takes
    2 + 2/N times its weights besides: the pieces of all and the flat row made of them, and this rank's own piece twice.

    Args:
        params: parameters, or parameter groups (dicts), as for any optimizer.
        optimizer: its class, or a function that makes it from groups.
        group: the ranks; None for all of them.
        defaults: its options, such as ``lr=1e-3``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer: Callable[..., torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        **defaults: Any,
    ) -> None:
        if not callable(optimizer):
            raise InvalidArgument("optimizer", optimizer, "an optimizer's class, such as torch.optim.AdamW")
        self.group, self.rank, self.world = group, dist.get_rank(group), dist.get_world_size(group)
        super().__init__(params, defaults)
        self.pieces = [_Piece(own["params"], self.rank, self.world) for own in self.param_groups]
        groups = zip(self.pieces, self.param_groups, strict=True)
        self.local = optimizer([{**own, "params": piece.slices} for piece, own in groups], **defaults)
        _copy_options(self.local, self)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's piece of every group, and gather the others'."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _copy_options(self, self.local)  # what a scheduler has changed, such as ``lr``
        for piece in self.pieces:
            piece.take_gradients()
        self.local.step()
        for piece in self.pieces:
            piece.gather(self.group)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is made: later the pieces are given. Raises `InvalidArgument` then."""
        if hasattr(self, "pieces"):
            raise InvalidArgument("param_group", list(param_group), "given when the optimizer is made")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state: every rank saves its own, and loads it into a world of the same size."""
        _copy_options(self, self.local)
        return {"rank": self.rank, "world": self.world, "local": self.local.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what the same rank of a world of the same size has saved. Raises `InvalidArgument` for another's."""
        theirs = state_dict.get("rank"), state_dict.get("world")
        if theirs != (self.rank, self.world):
            mine = f"that of rank {self.rank} in a world of {self.world}"
            raise InvalidArgument("state_dict", f"that of rank {theirs[0]} in a world of {theirs[1]}", mine)
        self.local.load_state_dict(state_dict["local"])
        _copy_options(self.local, self)


def _copy_options(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
    """Give every parameter group of ``target`` the options of that of ``source``."""
    for theirs, own in zip(source.param_groups, target.param_groups, strict=True):
        own.update({key: value for key, value in theirs.items() if key != "params"})


class _Piece:
    """One rank's piece of a parameter group: slices of the parameters between two places in the flat row."""

    def __init__(self, parameters: list[torch.Tensor], rank: int, world: int) -> None:
        kinds = {(str(p.dtype), str(p.device)) for p in parameters}
        if len(kinds) > 1:
            raise InvalidArgument("params", sorted(kinds), "of one dtype and device within a group")
        self.parameters = parameters
        self.bounds = chunk_bounds(sum(p.numel() for p in parameters), world).tolist()
        begin, end = self.bounds[rank], self.bounds[rank + 1]
        self.sources: list[tuple[torch.Tensor, int, int]] = []
        offset = 0
        for parameter in parameters:
            first, last = max(begin - offset, 0), min(end - offset, parameter.numel())
            if first < last:
                self.sources.append((parameter, first, last))
            offset += parameter.numel()
        self.slices = [torch.nn.Parameter(p.detach().reshape(-1)[a:b]) for p, a, b in self.sources]

    def take_gradients(self) -> None:
        """Point each slice at its part of the gradient, without a copy."""
        for piece, (parameter, first, last) in zip(self.slices, self.sources, strict=True):
            piece.grad = None if parameter.grad is None else parameter.grad.reshape(-1)[first:last]
            piece.data = parameter.detach().reshape(-1)[first:last]

    def gather(self, group: dist.ProcessGroup | None) -> None:
        """Give every rank the pieces of all: an all-gather into the flat row."""
        if not self.parameters:
            return
        like = self.parameters[0]
        lengths = [end - begin for begin, end in pairwise(self.bounds)]
        mine = torch.zeros(max(lengths), dtype=like.dtype, device=like.device)
        if self.slices:
            own = torch.cat([piece.detach() for piece in self.slices])
            mine[: own.numel()] = own
        row = [torch.empty_like(mine) for _ in lengths]
        dist.all_gather(row, mine, group=group)
        flat = torch.cat([part[:length] for part, length in zip(row, lengths, strict=True)])
        for parameter, values in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
            parameter.copy_(values.view_as(parameter))
