"""A rank's own gradients of one update, before they are averaged: what a replay needs of it.

Of each parameter, for every line of the script that calls backward, two sums over its backwards are kept: the
gradients times what the loss was divided by (``weighted``: the gradient of the plain sum over terms) and the sizes of
these (``sizes``, for the bound of rounding), with the sum of the divisors and how many backwards there were
(``divisors``). Over all lines: the gradients as they are (``plain``), and the last backward's alone (``last``).

Under `fully_shard` gradients are whole at the end of each group's backward, before they are scattered. No hook on a
parameter is called there, so an inner class of torch is hooked. A torch without that class leaves the replay without
them, and it says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpbook.runs.watching.divisors import Reduced
from dpbook.runs.watching.hashing import local_part
from dpbook.runs.watching.journal import REPLAY_ARRAYS, Recorder, array_key


@dataclass
class Line:
    """What the backwards of one line gave to one parameter."""

    weighted: torch.Tensor
    sizes: torch.Tensor
    divisors: float = 0.0
    backwards: int = 0


@dataclass
class Sums:
    """Of one parameter, in float64; ``backward`` is the number of the last one."""

    plain: torch.Tensor
    last: torch.Tensor
    lines: dict[str, Line] = field(default_factory=dict)
    backward: int = 0
    unit: float = 0.0
    """The unit roundoff of the gradients."""


class LocalGradients:
    """Hooks on parameters, only while a replay is wanted. They come last, after the script's own."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._sums: dict[int, Sums] = {}
        self._parameters: dict[int, torch.Tensor] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._divisor, self._line, self._number = 1.0, "", 0

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """The parameters of an optimizer."""
        if self.wanted:
            own = [each for each in parameters if each.requires_grad and not hasattr(each, "to_local")]
            self._parameters.update({id(each): each for each in own})

    def begin(self, losses: list[Reduced] | None, line: str) -> None:
        """A backward of a loss with these divisors begins, on ``line`` of the script."""
        if not self.wanted:
            return
        self._number += 1
        self._divisor, self._line = (losses[0].divisor if losses else 1.0), line
        if len(self._hooks) < len(self._parameters):
            self.forget_hooks()
            self._hooks = [each.register_hook(self._hook(each)) for each in self._parameters.values()]

    def _hook(self, parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
            self.add(parameter, dense.detach().double(), gradient.dtype)

        return hook

    def add(self, parameter: torch.Tensor, mine: torch.Tensor, dtype: torch.dtype) -> None:
        """What a backward gives to ``parameter`` on this rank, in float64, computed in ``dtype``."""
        sums = self._sums.get(id(parameter))
        if sums is None or _cleared(parameter, sums, self._number):
            sums = self._sums[id(parameter)] = Sums(_zeros(parameter), _zeros(parameter))
        line = sums.lines.setdefault(self._line, Line(_zeros(parameter), _zeros(parameter)))
        line.weighted += mine * self._divisor
        line.sizes += (mine * self._divisor).abs()
        sums.plain += mine
        sums.unit = max(sums.unit, torch.finfo(dtype).eps / 2)
        if sums.backward == self._number:  # a re-entrant backward inside this one
            sums.last += mine
        else:
            sums.last = mine.clone()
            line.divisors += abs(self._divisor)
            line.backwards += 1
        sums.backward = self._number

    def keep(self, folder: Path, rank: int, optimizer: int, named: Mapping[str, torch.Tensor]) -> None:
        """Write what was added up, and the gradients with which the optimizer steps, by the parameters' names."""
        arrays: dict[str, np.ndarray] = {}
        for name, parameter in named.items():
            if parameter.grad is None:
                continue
            if hasattr(parameter, "to_local"):
                if id(parameter) not in self._sums:
                    continue
                arrays[array_key("shard", name)] = np.array(_dimension(parameter))
            sums = self._sums.get(id(parameter)) or Sums(_zeros(parameter), _zeros(parameter))  # used on others alone
            arrays[array_key("applied", name)] = _plain(parameter.grad)
            arrays[array_key("unit", name)] = np.array(max(sums.unit, torch.finfo(parameter.grad.dtype).eps / 2))
            arrays[array_key("plain", name)] = sums.plain.cpu().numpy()
            arrays[array_key("last", name)] = sums.last.cpu().numpy()
            for text, line in sums.lines.items():
                arrays[array_key("weighted", name, text)] = line.weighted.cpu().numpy()
                arrays[array_key("sizes", name, text)] = line.sizes.cpu().numpy()
                arrays[array_key("divisors", name, text)] = np.array([line.divisors, line.backwards])
        np.savez(folder / REPLAY_ARRAYS.format(rank, optimizer), **arrays)  # type: ignore[arg-type]  # names are free

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """After an update: of parameters that are spread over ranks nobody can see whether they were cleared."""
        for parameter in parameters:
            if hasattr(parameter, "to_local"):
                self._sums.pop(id(parameter), None)

    def stop(self) -> None:
        """No more is kept."""
        self.wanted = False
        self.forget_hooks()
        self._sums.clear()

    def forget_hooks(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _zeros(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros(parameter.shape, dtype=torch.float64, device=parameter.device)


def _plain(gradient: torch.Tensor) -> np.ndarray:
    """As an array of float32, which holds every half; of float64 where it is that."""
    dense = local_part(gradient).detach()
    dense = dense if dense.layout == torch.strided else dense.to_dense()
    exact = torch.float64 if dense.dtype == torch.float64 else torch.float32
    array: np.ndarray = dense.to(exact).cpu().numpy()
    return array


def _dimension(parameter: torch.Tensor) -> int:
    """Along which dimension a parameter is spread over the ranks; -1 where it is otherwise."""
    placements = parameter.placements
    return int(placements[0].dim) if len(placements) == 1 and placements[0].is_shard() else -1


def _cleared(parameter: torch.Tensor, sums: Sums, number: int) -> bool:
    """Whether the gradient was cleared since the last backward."""
    if hasattr(parameter, "to_local"):
        return False
    return sums.backward != number and (parameter.grad is None or not bool(parameter.grad.any()))


class ShardedGradients:
    """Tells ``gradients`` of each parameter's gradient; what waits for a later backward is told once."""

    def __init__(self, recorder: Recorder, gradients: LocalGradients) -> None:
        self._gradients = gradients
        self._waiting: dict[int, torch.Tensor] = {}
        try:
            from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
        except ImportError:
            return
        if gradients.wanted:
            recorder.replace(FSDPParamGroup, "post_backward", self._watched)

    def _watched(self, post_backward: Callable[..., Any]) -> Callable[..., Any]:
        def watch_group(group: Any, *args: Any) -> Any:
            if not self._gradients.wanted:
                return post_backward(group, *args)
            held = {id(each): each for each in group.fsdp_params if hasattr(each, "_unsharded_param")}
            for each in held.values():
                self._tell(each)
            result = post_backward(group, *args)
            for number, each in held.items():  # what was scattered, or put aside, is not there next time
                if each._unsharded_param.grad is None:
                    self._waiting.pop(number, None)
            return result

        return watch_group

    def _tell(self, sharded: Any) -> None:
        gradient = sharded._unsharded_param.grad
        if gradient is not None:
            total = gradient.detach().double()
            before = self._waiting.get(id(sharded))
            self._gradients.add(sharded.sharded_param, total if before is None else total - before, gradient.dtype)
            self._waiting[id(sharded)] = total
