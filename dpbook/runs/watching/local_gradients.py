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
class GradientSums:
    """Sums for one parameter.

    Attributes:
        arrays: by their kind and line, in float64; ``after`` is in the dtype of the gradient.
        backward: number of the last backward.
        unit: unit roundoff of the gradients.
    """

    arrays: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)
    backward: int = 0
    unit: float = 0.0

    def add(self, kind: str, value: torch.Tensor, line: str = "") -> None:
        """Add to a sum, which begins with zero."""
        self.arrays[kind, line] = self.arrays.get((kind, line), 0) + value


class LocalGradients:
    """Sums of local gradients, from hooks on parameters that run after the script's own hooks.

    The hooks exist only while ``enabled`` is True: with the option ``replay``, until its update has been saved.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.enabled = recorder.options.replay > 0
        self._sums: dict[int, GradientSums] = {}
        self._parameters: dict[int, torch.Tensor] = {}
        self._hooks: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._divisor, self._line, self._number = 1.0, "", 0
        self._unsharded: dict[int, torch.Tensor] = {}  # gradients of `fully_shard` that accumulate over backwards
        recorder.on_close(self.stop)
        if self.enabled and FSDPParamGroup is not None:
            recorder.replace(FSDPParamGroup, "post_backward", self._wrap_post_backward)

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """Record the parameters of an optimizer; those of `fully_shard` need no hook of their own."""
        if self.enabled:
            self._parameters |= {id(each): each for each in parameters if not is_sharded(each)}

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
                self._add(parameter, _dense(gradient).double(), gradient.dtype)

        return hook

    def _wrap_post_backward(self, post_backward: Callable[..., Any]) -> Callable[..., Any]:
        def watch_group(group: Any, *args: Any) -> Any:
            if not self.enabled:
                return post_backward(group, *args)
            parameters = {id(each): each for each in group.fsdp_params if hasattr(each, "_unsharded_param")}
            for number, each in parameters.items():
                gradient = each._unsharded_param.grad
                if gradient is not None:
                    total = gradient.detach().double()
                    self._add(each.sharded_param, total - self._unsharded.get(number, 0), gradient.dtype)
                    self._unsharded[number] = total
            result = post_backward(group, *args)
            for number, each in parameters.items():  # a gradient that was scattered or offloaded is not accumulated
                if each._unsharded_param.grad is None:
                    self._unsharded.pop(number, None)
            return result

        return watch_group

    def _add(self, parameter: torch.Tensor, gradient_sum: torch.Tensor, dtype: torch.dtype) -> None:
        """Add a gradient of ``parameter`` on this rank: ``gradient_sum`` is float64, computed in ``dtype``."""
        sums = self._sums.get(id(parameter))
        if sums is None or self._is_cleared(parameter, sums):
            sums = self._sums[id(parameter)] = GradientSums()
        weighted = gradient_sum * self._divisor
        sums.add("weighted", weighted, self._line)
        sums.add("sizes", weighted.abs(), self._line)
        sums.add("plain", gradient_sum)
        sums.unit = max(sums.unit, torch.finfo(dtype).eps / 2)
        if sums.backward == self._number:  # a re-entrant backward inside this one
            sums.add("last", gradient_sum)
        else:
            sums.backward = self._number
            sums.arrays["last", ""] = gradient_sum.clone()
            sums.add("divisors", torch.tensor([abs(self._divisor), 1], dtype=torch.float64), self._line)

    def _is_cleared(self, parameter: torch.Tensor, sums: GradientSums) -> bool:
        """Whether the gradient that the last backward left was cleared; never True for a sharded parameter."""
        if hasattr(parameter, "to_local") or sums.backward == self._number or ("after", "") not in sums.arrays:
            return False
        return parameter.grad is None or not bool(parameter.grad.any())

    def end(self) -> None:
        """Keep the gradients that the backward leaves."""
        for number, sums in self._sums.items() if self.enabled else ():
            gradient = self._parameters[number].grad if number in self._parameters else None
            sums.arrays.pop(("after", ""), None)
            if gradient is not None:
                sums.arrays["after", ""] = gradient.detach().clone()

    def save(self, folder: Path, rank: int, optimizer: int, named: Mapping[str, torch.Tensor]) -> None:
        """Save the sums and the gradients of the optimizer's step, by the parameters' names."""
        arrays: dict[str, np.ndarray] = {}
        for name, parameter in named.items():
            sums = self._sums.get(id(parameter))
            if parameter.grad is None or (is_sharded(parameter) and sums is None):
                continue
            if is_sharded(parameter):
                placements = parameter.placements
                along_one = len(placements) == 1 and placements[0].is_shard()
                arrays[array_key("shard", name)] = np.array(placements[0].dim if along_one else -1)
            if sums is None:  # only other ranks use it
                sums = GradientSums()
                sums.arrays = dict.fromkeys((("plain", ""), ("last", "")), torch.zeros(parameter.shape).double())
            arrays[array_key("applied", name)] = _to_numpy(parameter.grad)
            arrays[array_key("unit", name)] = np.array(max(sums.unit, torch.finfo(parameter.grad.dtype).eps / 2))
            for (kind, line), values in sums.arrays.items():
                arrays[array_key(kind, name, line)] = _to_numpy(values)
        np.savez(folder / REPLAY_ARRAYS.format(rank, optimizer), **arrays)  # type: ignore[arg-type]  # any name is valid

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """Drop sums after an update where it is not visible whether they were cleared.

        Those are sums of sharded parameters, and of gradients that the script keeps elsewhere, as in a ``main_grad``.
        """
        for parameter in parameters:
            sums = self._sums.get(id(parameter))
            if sums and (is_sharded(parameter) or ("after", "") not in sums.arrays):
                del self._sums[id(parameter)]

    def stop(self) -> None:
        """Remove the hooks and drop all sums."""
        self.enabled = False
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self._sums.clear()


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.detach() if gradient.layout == torch.strided else gradient.detach().to_dense()


def _to_numpy(gradient: torch.Tensor) -> np.ndarray:
    """Return a gradient as float64 if it has that dtype, else as float32, which is exact for all smaller dtypes."""
    dense = _dense(local_part(gradient))
    array: np.ndarray = dense.to(torch.float64 if dense.dtype == torch.float64 else torch.float32).cpu().numpy()
    return array
