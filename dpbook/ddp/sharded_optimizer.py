"""ZeRO stage 1: every rank keeps the optimizer state of its own share of the parameters, and updates only that.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
2020.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from dpbook.core import InvalidArgument
from dpbook.ddp.sharded.row import all_gather


class ShardedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch has no types here
    """An elementwise optimizer, such as SGD, Adam or AdamW, whose state is shared out over the ranks.

    Each parameter group is one flat row of elements, cut evenly over the ranks of ``group``: rank r has the
    r-th piece of it as its own parameters (slices, which may begin and end inside a tensor). ``step`` updates these and
    then gathers everyone's, so that the result has the bits of the unsharded optimizer. Gradients must be averaged
    before, by a wrapper of `dpbook.ddp.wrappers` or torch's DistributedDataParallel; all parameters have one dtype
    and device within a group. An optimizer that looks at whole tensors, such as one with layer-wise norms, gives other
    results. Learning-rate schedulers act on ``param_groups`` as usual.

    Each group's parameters are moved into one row of memory when the optimizer is made, and are views of it from then
    on: slices are updated where they lie, and gathered in place. ``step`` takes 1/N of what the unsharded optimizer
    takes for a moment, and then what the backend takes for an all-gather (gloo a copy of the row): no moment needs more
    than unsharded training does.

    ``optimizer`` is the class, or a function that makes the optimizer from groups; ``params`` and ``defaults`` are as
    for any optimizer.
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
        self.rows = [_Row(own["params"], self.rank, self.world) for own in self.param_groups]
        groups = zip(self.rows, self.param_groups, strict=True)
        self.local = optimizer([{**own, "params": row.slices} for row, own in groups], **defaults)
        _copy_options(self.local, self)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's piece of every parameter group, and gather the other ranks' pieces.

        All ranks must call it. Returns the value of ``closure``, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _copy_options(self, self.local)  # what a scheduler has changed, such as ``lr``
        for row in self.rows:
            row.take_gradients()
        self.local.step()
        self.local.zero_grad()  # a part of a gradient would keep the memory of it all until the next step
        gather = all_gather(self.group)
        for row in self.rows:
            if row.parameters:
                gather(row.memory).wait()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimizer is constructed; raise `InvalidArgument` afterwards."""
        if hasattr(self, "rows"):
            raise InvalidArgument("param_group", list(param_group), "given when the optimizer is made")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state: every rank saves its own, and loads it with the same world size."""
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


class _Row:
    """A parameter group in one row of memory, cut into equal pieces; the parameters are views of it from then on.

    ``slices`` are the parts of the parameters that lie in this rank's piece, each a parameter of the local optimizer.
    """

    def __init__(self, parameters: list[torch.Tensor], rank: int, world: int) -> None:
        kinds = {(str(p.dtype), str(p.device)) for p in parameters}
        if len(kinds) > 1:
            raise InvalidArgument("params", sorted(kinds), "of one dtype and device within a group")
        self.parameters = parameters
        self.slices: list[torch.nn.Parameter] = []
        self.sources: list[tuple[torch.Tensor, int, int]] = []
        if not parameters:
            return
        length = -(-sum(p.numel() for p in parameters) // world)
        self.memory = torch.zeros(world * length, dtype=parameters[0].dtype, device=parameters[0].device)
        offset = 0
        for parameter in parameters:
            dense = torch.empty_like(parameter, device="meta")
            view = self.memory.as_strided(parameter.shape, dense.stride(), offset)
            view.copy_(parameter.detach())
            parameter.data = view
            first, last = max(rank * length - offset, 0), min((rank + 1) * length - offset, parameter.numel())
            if first < last:
                self.sources.append((parameter, first, last))
                self.slices.append(torch.nn.Parameter(self.memory[offset + first : offset + last]))
            offset += parameter.numel()

    def take_gradients(self) -> None:
        """Point each slice at its part of the gradient, without a copy where that lies as the parameter does."""
        if any(p.untyped_storage()._cdata != self.memory.untyped_storage()._cdata for p in self.parameters):
            expected = "left in the memory that the optimizer has put them in; move a module before it is made"
            raise InvalidArgument("params", "moved", expected)
        for piece, (parameter, first, last) in zip(self.slices, self.sources, strict=True):
            gradient = parameter.grad
            if gradient is not None:
                if gradient.stride() != parameter.stride():
                    gradient = torch.empty_like(parameter).copy_(gradient)
                piece.grad = gradient.as_strided((gradient.numel(),), (1,))[first:last]
            else:
                piece.grad = None
