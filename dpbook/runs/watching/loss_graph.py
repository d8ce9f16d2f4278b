"""Autograd's graph of a loss: the divisors of its terms.

The walk to the divisors starts at the tensor that is differentiated. It passes factors, quotients and sums, and ends at
each mean or sum over examples, however the script wrote the loss. The graph saves what the derivative needs, and the
divisor is part of that.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

MEAN, SUM = 1, 2
"""Numbers that torch uses for the reduction of a loss; 0 is no reduction."""
_PLAIN = (
    "NegBackward", "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward",
    "UnsqueezeBackward", "ToCopyBackward", "CloneBackward", "AliasBackward",
)  # fmt: skip
"""Nodes that change only the sign, shape or dtype."""
_SINK = "_DDPSinkBackward"
"""Node through which torch's DDP passes each tensor of its output where it looks for unused parameters."""
_SPREAD = ("AddBackward", "SubBackward", "StackBackward", "CatBackward")
"""Nodes that add or concatenate several losses."""
Edge: TypeAlias = tuple[Any, int]
"""Node of autograd's graph and the number of its output, as in ``next_functions``."""
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
        shape: shape of the tensor of all terms, or () if some of its elements are no terms or have weights.
    """

    node: str
    terms: float
    divisor: float
    mean: bool
    shape: tuple[int, ...]


class _UnknownNodeError(Exception):
    """Raised if it is not known by what a node divides the terms of a loss."""


def reductions(loss: torch.Tensor) -> list[Reduction] | None:
    """Return every mean or sum in ``loss``, in the order of the graph; None if the graph has a node that is not known.

    A product with a tensor of several elements is such a node, because its factor is no constant.
    """
    if loss.grad_fn is None:
        return None
    try:
        return list(_walk((loss.grad_fn, loss.output_nr), 1.0, 0)) or None
    except (_UnknownNodeError, RuntimeError, AttributeError):  # saved tensors may be packed, or have other names
        return None


def _name(node: Any) -> str:
    """Return the name of a node's class, without the number at its end."""
    return str(node.name()).rstrip("0123456789")


def _walk(edge: Edge, divisor: float, depth: int) -> Iterator[Reduction]:
    """Yield the means and sums below ``edge``; ``divisor`` is the product of the divisors above it."""
    node, output = edge
    name = _name(node)
    below = [each for each in node.next_functions if each[0] is not None]
    if depth > _MAX_DEPTH:
        raise _UnknownNodeError
    if name == _SINK:  # its first input is no tensor; it has an edge for each input that needs a gradient
        yield from _walk(below[sum(node.needs_input_grad[: output + 1])], divisor, depth + 1)
    elif name in _PLAIN and len(below) == 1:
        yield from _walk(below[0], divisor, depth + 1)
    elif name in _SPREAD:
        for each in below:
            if "AccumulateGrad" not in str(each[0].name()):  # a leaf is a parameter
                yield from _walk(each, divisor, depth + 1)
    elif name in ("MulBackward", "DivBackward") and len(below) == 1:
        factor = _constant(node)
        if factor is None or (not factor and name == "DivBackward"):
            raise _UnknownNodeError
        if factor:  # else there is no term, as of a weight that has yet to grow, or of parameters only to be used
            yield from _walk(below[0], divisor / factor if name == "MulBackward" else divisor * factor, depth + 1)
    elif name in ("MeanBackward", "SumBackward"):
        yield from _mean_or_sum(node, below, divisor, depth)
    else:
        terms, mean, shape = _terms_of_loss(node)
        yield Reduction(name.removesuffix("Backward"), terms, divisor * (terms if mean else 1.0), mean, shape)


def _mean_or_sum(node: Any, below: list[Edge], divisor: float, depth: int) -> Iterator[Reduction]:
    name, sizes = _name(node), tuple(map(int, node._saved_self_sym_sizes))
    mean, number = name == "MeanBackward", float(math.prod(sizes))
    whole = divisor * number if mean else divisor
    if below and _over_examples(below[0][0]):  # the number of examples is in that one
        raise _UnknownNodeError
    if below and (number == 1 or _name(below[0][0]) in ("StackBackward", "CatBackward")):
        with suppress(_UnknownNodeError):
            yield from list(_walk(below[0], whole, depth + 1))
            return
    terms = number if mean else _unmasked(below, number)
    shape = sizes if terms == number else ()
    yield Reduction(name.removesuffix("Backward"), terms, whole, mean, shape)


def _over_examples(node: Any) -> bool:
    """Whether a node takes the mean or sum over the first dimension and keeps others."""
    if not str(node.name()).startswith(("MeanBackward1", "SumBackward1")):
        return False
    rank, dims = len(node._saved_self_sym_sizes), node._saved_dim or ()
    return rank > 1 and any(dim % 2**64 in (0, 2**64 - rank) for dim in dims)


def _unmasked(below: list[Edge], number: float) -> float:
    """Return the number of terms of a sum that a mask of zeros and ones, if there is one, leaves in it."""
    if below and str(below[0][0].name()).startswith("MulBackward"):
        for saved in ("_saved_other", "_saved_self"):
            mask = getattr(below[0][0], saved, None)
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


def _terms_of_loss(node: Any) -> tuple[float, bool, tuple[int, ...]]:
    """Return the number of terms of a loss function's node, whether it takes their mean, and their shape.

    The terms of a negative log likelihood are its targets that are not ignored, or their total weight.
    """
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (MEAN, SUM):
        raise _UnknownNodeError
    if not hasattr(node, "_saved_total_weight"):
        terms = node._saved_self
        return float(terms.numel()), reduction == MEAN, tuple(terms.shape)
    target, ignored = node._saved_target, int(node._saved_ignore_index)
    if reduction == MEAN or node._saved_weight is not None:
        weight = float(node._saved_total_weight)
    else:
        weight = float((target != (ignored - 2**64 if ignored >= 2**63 else ignored)).sum())
    return weight, reduction == MEAN, tuple(target.shape) if weight == target.numel() else ()


_VIEWS = (*_PLAIN, "TBackward", "TransposeBackward", "PermuteBackward", "ExpandBackward")
"""Nodes below which a matrix is the same one."""


def nodes(loss: torch.Tensor) -> Iterator[Any]:
    """Yield every node of the graph once."""
    waiting, known = [loss.grad_fn] if loss.grad_fn is not None else [], set()
    while waiting:
        node = waiting.pop()
        if node not in known:
            known.add(node)
            yield node
            waiting.extend(each for each, _ in node.next_functions if each is not None)


def is_parameter(node: Any) -> bool:
    """Whether a node's output is a leaf, such as a parameter, or a view of one."""
    while _name(node) in _VIEWS and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return "AccumulateGrad" in str(node.name())


def saves_row(loss: torch.Tensor, row: torch.Tensor) -> bool:
    """Whether a matrix that the graph saved has ``row`` among its rows or columns."""
    return any(_has_row(each, row) or _has_row(each.mT, row) for node in nodes(loss) for each in _saved(node))


def _saved(node: Any) -> Iterator[torch.Tensor]:
    """Yield the matrices that a node saved; what hooks have packed (checkpoints, offloading) is not unpacked."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            raw = getattr(node, name)
            if getattr(raw, "unpack_hook", None) is None:
                tensor = getattr(node, name.replace("_raw", "", 1))
                if isinstance(tensor, torch.Tensor) and tensor.dim() > 1 and tensor.is_floating_point():
                    yield tensor.detach()


def _has_row(matrix: torch.Tensor, row: torch.Tensor) -> bool:
    if matrix.shape[-1] != len(row) or matrix.device != row.device:
        return False
    return bool((matrix == row.to(matrix.dtype)).all(-1).any())
