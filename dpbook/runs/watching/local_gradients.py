"""Local gradients of one update on a rank, before averaging, and the divisors of their losses, for the replay.

For each parameter and each line of the script that calls backward, two sums over backwards are stored. ``weighted``
sums the gradients times the divisors of their losses: it is the gradient of the plain sum over terms. ``sizes`` sums
the absolute values of the same, for the rounding bound. ``divisors`` has the sum of the divisors and the number of
backwards. Over all lines, ``plain`` sums the gradients as they are, and ``last`` is the gradient of the last backward.
``after`` is the gradient as the last backward leaves it, which a wrapper has averaged.

Under `fully_shard` gradients are whole at the end of each group's backward, before they are scattered. No hook on a
parameter is called there, so a private class of torch is hooked. With a torch that lacks the class, the replay is
reported as not tested.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpbook.runs.watching.hashing import is_sharded, local_part
from dpbook.runs.watching.hooks import FSDPParamGroup
from dpbook.runs.watching.journal import REPLAY_ARRAYS, Recorder, array_key
from dpbook.runs.watching.loss_graph import Reduction


@dataclass
class LineSums:
    """Sums over the backwards of one line for one parameter, in float64."""

    weighted: torch.Tensor
    sizes: torch.Tensor
    divisors: float = 0.0
    backwards: int = 0


@dataclass
class GradientSums:
    """Sums for one parameter, in float64; ``backward`` is the number of the last backward."""

    plain: torch.Tensor
    last: torch.Tensor
    after: torch.Tensor | None = None
    """In the dtype of the gradient."""
    lines: dict[str, LineSums] = field(default_factory=dict)
    backward: int = 0
    unit: float = 0.0
    """Unit roundoff of the gradients."""


class LocalGradients:
    """Sums of local gradients, from hooks on parameters that run after the script's own hooks.

    The hooks exist only while ``enabled`` is True.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._sums: dict[int, GradientSums] = {}
        self._parameters: dict[int, torch.Tensor] = {}
        self._hooks: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._divisor, self._line, self._number = 1.0, "", 0

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """Record the parameters of an optimizer; sharded ones are recorded by `ShardedGradients`."""
        if self.enabled:
            whole = [each for each in parameters if not is_sharded(each)]
            self._parameters.update({id(each): each for each in whole})

    def begin(self, losses: list[Reduction] | None, line: str) -> None:
        """Note that a backward of a loss with these divisors begins, on ``line`` of the script."""
        if not self.enabled:
            return
        self._number += 1
        self._divisor, self._line = (losses[0].divisor if losses else 1.0), line
        for number, each in self._parameters.items():
            if each.requires_grad and number not in self._hooks:  # a script may freeze some and thaw them later
                self._hooks[number] = each.register_hook(self._hook(each))

    def _hook(self, parameter: torch.Tensor) -> Callable[[torch.Tensor | None], None]:
        def hook(gradient: torch.Tensor | None) -> None:
            if gradient is not None:  # it is None for an output that the loss does not use, see `LocalGradientSums`
                dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
                self.add(parameter, dense.detach().double(), gradient.dtype)

        return hook

    def add(self, parameter: torch.Tensor, gradient_sum: torch.Tensor, dtype: torch.dtype) -> None:
        """Add a gradient of ``parameter`` on this rank: ``gradient_sum`` is float64, computed in ``dtype``."""
        sums = self._sums.get(id(parameter))
        if sums is None or _cleared(parameter, sums, self._number):
            sums = self._sums[id(parameter)] = GradientSums(_zeros(parameter), _zeros(parameter))
        line = sums.lines.setdefault(self._line, LineSums(_zeros(parameter), _zeros(parameter)))
        line.weighted += gradient_sum * self._divisor
        line.sizes += (gradient_sum * self._divisor).abs()
        sums.plain += gradient_sum
        sums.unit = max(sums.unit, torch.finfo(dtype).eps / 2)
        if sums.backward == self._number:  # a re-entrant backward inside this one
            sums.last += gradient_sum
        else:
            sums.last = gradient_sum.clone()
            line.divisors += abs(self._divisor)
            line.backwards += 1
        sums.backward = self._number

    def end(self) -> None:
        """Keep the gradients that the backward leaves."""
        for number, sums in self._sums.items() if self.enabled else ():
            gradient = self._parameters[number].grad if number in self._parameters else None
            sums.after = None if gradient is None else gradient.detach().clone()

    def save(self, folder: Path, rank: int, optimizer: int, named: Mapping[str, torch.Tensor]) -> None:
        """Save the sums and the gradients of the optimizer's step, by the parameters' names."""
        arrays: dict[str, np.ndarray] = {}
        for name, parameter in named.items():
            if parameter.grad is None:
                continue
            if is_sharded(parameter):
                if id(parameter) not in self._sums:
                    continue
                arrays[array_key("shard", name)] = np.array(_dimension(parameter))
            sums = self._sums.get(id(parameter)) or GradientSums(
                _zeros(parameter), _zeros(parameter)
            )  # only other ranks use it
            arrays[array_key("applied", name)] = _to_numpy(parameter.grad)
            arrays[array_key("unit", name)] = np.array(max(sums.unit, torch.finfo(parameter.grad.dtype).eps / 2))
            arrays[array_key("plain", name)] = sums.plain.cpu().numpy()
            arrays[array_key("last", name)] = sums.last.cpu().numpy()
            if sums.after is not None:
                arrays[array_key("after", name)] = _to_numpy(sums.after)
            for text, line in sums.lines.items():
                arrays[array_key("weighted", name, text)] = line.weighted.cpu().numpy()
                arrays[array_key("sizes", name, text)] = line.sizes.cpu().numpy()
                arrays[array_key("divisors", name, text)] = np.array([line.divisors, line.backwards])
        np.savez(folder / REPLAY_ARRAYS.format(rank, optimizer), **arrays)  # type: ignore[arg-type]  # any name is valid

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """Drop the sums of sharded parameters after an update, because it is not visible whether they were cleared."""
        for parameter in parameters:
            if is_sharded(parameter):
                self._sums.pop(id(parameter), None)

    def stop(self) -> None:
        """Remove the hooks and drop all sums."""
        self.enabled = False
        self.forget_hooks()
        self._sums.clear()

    def forget_hooks(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()


def _zeros(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros(parameter.shape, dtype=torch.float64, device=parameter.device)


def _to_numpy(gradient: torch.Tensor) -> np.ndarray:
    """Return a gradient as float64 if it has that dtype, else as float32, which is exact for all smaller dtypes."""
    dense = local_part(gradient).detach()
    dense = dense if dense.layout == torch.strided else dense.to_dense()
    exact = torch.float64 if dense.dtype == torch.float64 else torch.float32
    array: np.ndarray = dense.to(exact).cpu().numpy()
    return array


def _dimension(parameter: torch.Tensor) -> int:
    """Return the dimension along which a parameter is sharded, or -1 if it is not sharded along a single one."""
    placements = parameter.placements
    return int(placements[0].dim) if len(placements) == 1 and placements[0].is_shard() else -1


def _cleared(parameter: torch.Tensor, sums: GradientSums, number: int) -> bool:
    """Whether the gradient was cleared since the last backward; never True for a sharded parameter."""
    if hasattr(parameter, "to_local"):
        return False
    return sums.backward != number and (parameter.grad is None or not bool(parameter.grad.any()))


class ShardedGradients:
    """Adds the gradients of `fully_shard` to ``gradients``; one that accumulates over backwards is added once."""

    def __init__(self, recorder: Recorder, gradients: LocalGradients) -> None:
        self._gradients = gradients
        self._waiting: dict[int, torch.Tensor] = {}
        if gradients.enabled and FSDPParamGroup is not None:
            recorder.replace(FSDPParamGroup, "post_backward", self._wrap_post_backward)

    def _wrap_post_backward(self, post_backward: Callable[..., Any]) -> Callable[..., Any]:
        def watch_group(group: Any, *args: Any) -> Any:
            if not self._gradients.enabled:
                return post_backward(group, *args)
            parameters = {id(each): each for each in group.fsdp_params if hasattr(each, "_unsharded_param")}
            for each in parameters.values():
                self._add(each)
            result = post_backward(group, *args)
            for number, each in parameters.items():  # a gradient that was scattered or offloaded is not accumulated
                if each._unsharded_param.grad is None:
                    self._waiting.pop(number, None)
            return result

        return watch_group

    def _add(self, sharded: Any) -> None:
        gradient = sharded._unsharded_param.grad
        if gradient is not None:
            total = gradient.detach().double()
            before = self._waiting.get(id(sharded))
            self._gradients.add(sharded.sharded_param, total if before is None else total - before, gradient.dtype)
            self._waiting[id(sharded)] = total
