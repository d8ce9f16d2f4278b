"""What a sharded model and its optimizer keep, by the names of the parameters, for torch's distributed checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dpbook.core import InvalidArgument
from dpbook.ddp.sharded.row import Row
from dpbook.ddp.sharded.slices import Slice
from dpbook.ddp.sharded.unit import Unit

if TYPE_CHECKING:
    from dpbook.ddp.sharded.fully_sharded import FullySharded


def slices(units: Sequence[Unit], prefix: str) -> dict[str, Slice]:
    """What this rank has of every parameter, by all its names."""
    return {
        prefix + name: row.slice_of(index, member.parameter.detach())
        for row in _rows(units)
        for index, member in enumerate(row.members)
        for name in member.names
    }


def own_pieces(units: Sequence[Unit], state: Mapping[str, Any]) -> dict[str, Any]:
    """The ``state`` of a module, of parameters this rank's slices alone."""
    pieces = {
        name: row.piece_of(index, name, state[name])
        for row in _rows(units)
        for index, member in enumerate(row.members)
        for name in member.names
        if name in state
    }
    return {**state, **pieces}


def _rows(units: Sequence[Unit]) -> Iterator[Row]:
    return (row for unit in units for row in unit.rows)


def optimizer_state(units: Sequence[Unit], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state by names, and the options of the parameter groups; see `FullySharded.optimizer_state`."""
    members = {member.parameter: (row, index) for row in _rows(units) for index, member in enumerate(row.members)}
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    if others := [p for p in listed if p not in members]:
        expected = "of the parameters of this module, and of no others"
        raise InvalidArgument("optimizer", f"one with a parameter of shape {tuple(others[0].shape)}", expected)
    _begin(optimizer, [p for p in listed if p not in optimizer.state])

    def described(parameter: nn.Parameter, value: Any) -> Any:
        per_element = isinstance(value, torch.Tensor) and value.shape == parameter.shape
        return members[parameter][0].slice_of(members[parameter][1], value) if per_element else value

    def name(parameter: nn.Parameter) -> str:
        row, index = members[parameter]
        return row.members[index].name

    return {
        "state": {name(p): {k: described(p, v) for k, v in kept.items()} for p, kept in optimizer.state.items()},
        "param_groups": [{**group, "params": [name(p) for p in group["params"]]} for group in optimizer.param_groups],
    }


def _begin(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Let it make the state of trained ``parameters`` that have none, by a step in which nothing but that happens.

    Whoever loads a checkpoint asks for the state of all, whether all had a gradient where it was saved or not. Of SGD,
    Adagrad, Adam and AdamW what is made is as good as none: zeros, or what they begin with, and no step taken.
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
    the same, on as many ranks as one likes.
    """

    def __init__(self, model: "FullySharded", optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """What is to be saved, or to be filled by loading."""
        return {"model": self.model.state_dict(), "optim": self.model.optimizer_state(self.optimizer)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what was loaded: values are in place already, options of the parameter groups are not."""
        self.model.load_state_dict(state_dict["model"])
        loaded = state_dict["optim"]["param_groups"]
        for group, found in zip(self.optimizer.param_groups, loaded, strict=True):
            group.update({key: value for key, value in found.items() if key != "params"})
