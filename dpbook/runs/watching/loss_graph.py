"""Autograd's graph of a loss: the divisors of its terms.

The walk to the divisors starts at the tensor that is differentiated. It passes factors, quotients and sums, and ends at
each mean or sum over examples, however the script wrote the loss. The graph saves what the derivative needs, and the
divisor is part of that.
"""

import math
from collections.abc import Iterator
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


def reductions(loss: torch.Tensor) -> list[Reduction] | None:
    """Return every mean or sum in ``loss``, in the order of the graph; None if the graph has a node that is not known.

    A product with a tensor of several elements is such a node, because its factor is no constant.
    """
    parts: list[Reduction] = []
    try:
        known = loss.grad_fn is not None and _walk((loss.grad_fn, loss.output_nr), 1.0, parts, 0)
    except (RuntimeError, AttributeError):  # saved tensors may be packed by hooks, or have other names
        return None
    return parts if known and parts else None


def _walk(edge: Edge, divisor: float, parts: list[Reduction], depth: int) -> bool:
    """Append the means and sums below ``edge`` to ``parts``; return whether all nodes are known.

    ``divisor`` is the product of the divisors above the edge.
    """
    node, output = edge
    name = str(node.name()).rstrip("0123456789")
    below = [each for each in node.next_functions if each[0] is not None]
    if depth > _MAX_DEPTH:
        return False
    if name == _SINK:  # its first input is no tensor; it has an edge for each input that needs a gradient
        return _walk(below[sum(node.needs_input_grad[: output + 1])], divisor, parts, depth + 1)
    if name in _PLAIN and len(below) == 1:
        return _walk(below[0], divisor, parts, depth + 1)
    if name in _SPREAD:
        losses = [each for each in below if "AccumulateGrad" not in str(each[0].name())]  # a leaf is a parameter
        return all(_walk(each, divisor, parts, depth + 1) for each in losses)
    if name in ("MulBackward", "DivBackward") and len(below) == 1:
        factor = _constant(node)
        if factor is None or (not factor and name == "DivBackward"):
            return False
        if not factor:  # no term, as of a weight that has yet to grow, or of parameters that are only to be used
            return True
        return _walk(below[0], divisor / factor if name == "MulBackward" else divisor * factor, parts, depth + 1)
    if name in ("MeanBackward", "SumBackward"):
        return _mean_or_sum(node, name, below, divisor, parts, depth)
    terms = _terms_of_loss(node)
    if terms is None:
        return False
    count, mean, shape = terms
    parts.append(Reduction(name.removesuffix("Backward"), count, divisor * (count if mean else 1.0), mean, shape))
    return True


def _mean_or_sum(node: Any, name: str, below: list[Edge], divisor: float, parts: list[Reduction], depth: int) -> bool:
    sizes = tuple(map(int, node._saved_self_sym_sizes))
    number = float(math.prod(sizes))
    whole = divisor * number if name == "MeanBackward" else divisor
    if below and _over_examples(below[0][0]):  # the number of examples is in that one
        return False
    nested = below and str(below[0][0].name()).rstrip("0123456789") in ("StackBackward", "CatBackward")
    if (number == 1 or nested) and below and _walk(below[0], whole, parts, depth + 1):
        return True
    terms = number if name == "MeanBackward" else _unmasked(below, number)
    shape = sizes if terms == number else ()
    parts.append(Reduction(name.removesuffix("Backward"), terms, whole, name == "MeanBackward", shape))
    return True


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


def _terms_of_loss(node: Any) -> tuple[float, bool, tuple[int, ...]] | None:
    """Return the number of terms of a loss function's node, whether it takes their mean, and their shape, or None."""
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (MEAN, SUM):
        return None
    if hasattr(node, "_saved_total_weight"):
        weight, target = _total_weight(node, reduction), node._saved_target
        return weight, reduction == MEAN, tuple(target.shape) if weight == target.numel() else ()
    terms = node._saved_self
    return float(terms.numel()), reduction == MEAN, tuple(terms.shape)


def _total_weight(node: Any, reduction: int) -> float:
    """Return the total weight of a negative log likelihood; without weights, the number of targets not ignored."""
    if reduction == MEAN or node._saved_weight is not None:
        return float(node._saved_total_weight)
    ignored = int(node._saved_ignore_index)
    ignored = ignored - 2**64 if ignored >= 2**63 else ignored
    return float((node._saved_target != ignored).sum())


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
    while str(node.name()).rstrip("0123456789") in _VIEWS and node.next_functions[0][0] is not None:
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
