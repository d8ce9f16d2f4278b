"""Local gradients of one update on a rank, before averaging, and the divisors of their losses, for the replay.

For each parameter and each line of the script that calls backward, two sums over backwards are stored. ``weighted``
sums the gradients times the divisors of their losses: it is the gradient of the plain sum over terms. ``sizes`` sums
the absolute values of the same, for the rounding bound. ``divisors`` has the sum of the divisors and the number of
backwards. Over all lines, ``plain`` sums the gradients as they are, and ``last`` is the gradient of the last backward.

A divisor is read from autograd's graph, however the script wrote the loss. The walk starts at the tensor that is
differentiated. It passes factors, quotients and sums, and ends at each mean or sum over examples. The graph saves what
the derivative needs, and the divisor is part of that.

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

from dpbook.runs.watching.hashing import local_part
from dpbook.runs.watching.journal import REPLAY_ARRAYS, Recorder, array_key

MEAN, SUM = 1, 2
"""Numbers that torch uses for the reduction of a loss; 0 is no reduction."""
_PLAIN = (
    "NegBackward", "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward",
    "UnsqueezeBackward", "ToCopyBackward", "CloneBackward", "AliasBackward",
)  # fmt: skip
"""Nodes that change only the sign, shape or dtype."""
_SPREAD = ("AddBackward", "SubBackward", "StackBackward", "CatBackward")
"""Nodes that add or concatenate several losses."""
_MAX_DEPTH = 200
"""Nodes between a loss and its mean or sum, beyond which the walk gives up."""


@dataclass(frozen=True)
class Reduction:
    """One mean or sum in a loss.

    Attributes:
        node: name of its autograd node.
        terms: number of terms, or sum of their weights.
        divisor: number by which each term is divided in all.
        mean: whether the node itself divides by the number of terms.
    """

    node: str
    terms: float
    divisor: float
    mean: bool


def reductions(loss: torch.Tensor) -> list[Reduction] | None:
    """Return every mean or sum in ``loss``, in the order of the graph; None if the graph has a node that is not known.

    A product with a tensor of several elements is such a node, because its factor is no constant.
    """
    parts: list[Reduction] = []
    return parts if loss.grad_fn is not None and _walk(loss.grad_fn, 1.0, parts, 0) and parts else None


def _walk(node: Any, divisor: float, parts: list[Reduction], depth: int) -> bool:
    """Append the means and sums below ``node`` to ``parts``; return whether all nodes are known.

    ``divisor`` is the product of the divisors above the node.
    """
    name = str(node.name()).rstrip("0123456789")
    below = [following for following, _ in node.next_functions if following is not None]
    if depth > _MAX_DEPTH:
        return False
    if name in _PLAIN and len(below) == 1:
        return _walk(below[0], divisor, parts, depth + 1)
    if name in _SPREAD:
        return all(_walk(each, divisor, parts, depth + 1) for each in below if _is_loss(each))
    if name in ("MulBackward", "DivBackward") and len(below) == 1:
        factor = _constant(node)
        if not factor:
            return False
        return _walk(below[0], divisor / factor if name == "MulBackward" else divisor * factor, parts, depth + 1)
    if name in ("MeanBackward", "SumBackward"):
        return _mean_or_sum(node, name, below, divisor, parts, depth)
    terms = _terms_of_loss(node)
    if terms is None:
        return False
    count, mean = terms
    parts.append(Reduction(name.removesuffix("Backward"), count, divisor * (count if mean else 1.0), mean))
    return True


def _is_loss(node: Any) -> bool:
    """Whether a summand is a loss: a constant tensor or a leaf (a parameter) is not."""
    return "AccumulateGrad" not in str(node.name())


def _mean_or_sum(node: Any, name: str, below: list[Any], divisor: float, parts: list[Reduction], depth: int) -> bool:
    sizes = tuple(node._saved_self_sym_sizes)
    number = 1.0
    for size in sizes:
        number *= int(size)
    whole = divisor * number if name == "MeanBackward" else divisor
    nested = below and str(below[0].name()).rstrip("0123456789") in ("StackBackward", "CatBackward")
    if (number == 1 or nested) and below and _walk(below[0], whole, parts, depth + 1):
        return True
    terms = number if name == "MeanBackward" else _unmasked(below, number)
    parts.append(Reduction(name.removesuffix("Backward"), terms, whole, name == "MeanBackward"))
    return True


def _unmasked(below: list[Any], number: float) -> float:
    """Return the number of terms of a sum that a mask of zeros and ones, if there is one, leaves in it."""
    if below and str(below[0].name()).startswith("MulBackward"):
        for saved in ("_saved_other", "_saved_self"):
            mask = getattr(below[0], saved, None)
            if isinstance(mask, torch.Tensor) and mask.numel() > 1 and bool(((mask == 0) | (mask == 1)).all()):
                counted: float = mask.sum().item() * max(1.0, number / mask.numel())
                return counted
    return number


def _constant(node: Any) -> float | None:
    """Return the number by which a node multiplies or divides, or None if it is no single number."""
    for saved in ("_saved_other", "_saved_self"):
        value = getattr(node, saved, None)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return float(value)
        if isinstance(value, int | float):
            return float(value)
    return None


def _terms_of_loss(node: Any) -> tuple[float, bool] | None:
    """Return the number of terms of a loss function's node and whether it takes their mean, or None."""
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (MEAN, SUM):
        return None
    if hasattr(node, "_saved_total_weight"):
        return float(_total_weight(node, reduction)), reduction == MEAN
    return float(node._saved_self.numel()), reduction == MEAN


def _total_weight(node: Any, reduction: int) -> float:
    """Return the total weight of a negative log likelihood; without weights, the number of targets not ignored."""
    if reduction == MEAN or node._saved_weight is not None:
        return float(node._saved_total_weight)
    ignored = int(node._saved_ignore_index)
    ignored = ignored - 2**64 if ignored >= 2**63 else ignored
    return float((node._saved_target != ignored).sum())


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
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._divisor, self._line, self._number = 1.0, "", 0

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """Record the parameters of an optimizer; sharded ones are recorded by `ShardedGradients`."""
        if self.enabled:
            whole = [each for each in parameters if each.requires_grad and not hasattr(each, "to_local")]
            self._parameters.update({id(each): each for each in whole})

    def begin(self, losses: list[Reduction] | None, line: str) -> None:
        """Note that a backward of a loss with these divisors begins, on ``line`` of the script."""
        if not self.enabled:
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

    def save(self, folder: Path, rank: int, optimizer: int, named: Mapping[str, torch.Tensor]) -> None:
        """Save the sums and the gradients of the optimizer's step, by the parameters' names."""
        arrays: dict[str, np.ndarray] = {}
        for name, parameter in named.items():
            if parameter.grad is None:
                continue
            if hasattr(parameter, "to_local"):
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
            for text, line in sums.lines.items():
                arrays[array_key("weighted", name, text)] = line.weighted.cpu().numpy()
                arrays[array_key("sizes", name, text)] = line.sizes.cpu().numpy()
                arrays[array_key("divisors", name, text)] = np.array([line.divisors, line.backwards])
        np.savez(folder / REPLAY_ARRAYS.format(rank, optimizer), **arrays)  # type: ignore[arg-type]  # any name is valid

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """Drop the sums of sharded parameters after an update, because it is not visible whether they were cleared."""
        for parameter in parameters:
            if hasattr(parameter, "to_local"):
                self._sums.pop(id(parameter), None)

    def stop(self) -> None:
        """Remove the hooks and drop all sums."""
        self.enabled = False
        self.forget_hooks()
        self._sums.clear()

    def forget_hooks(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


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
        try:
            from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
        except ImportError:
            return
        if gradients.enabled:
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
