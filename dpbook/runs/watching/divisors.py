"""What a loss is divided by: read from autograd's graph, however the script has written the loss.

From the tensor that is differentiated the walk goes down over factors, quotients and sums to each mean or sum over
examples. A graph keeps what it needs for the derivative, and so it knows the divisor.
"""

from dataclasses import dataclass
from typing import Any

import torch

MEAN, SUM = 1, 2
"""torch's numbers for a loss's reduction; 0 is none."""
_PLAIN = (
    "NegBackward", "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward",
    "UnsqueezeBackward", "ToCopyBackward", "CloneBackward", "AliasBackward",
)  # fmt: skip
"""Nodes that change no number but its sign or its form."""
_SPREAD = ("AddBackward", "SubBackward", "StackBackward", "CatBackward")
"""Nodes that add several losses, or lay them side by side."""
_DEEPEST = 200


@dataclass(frozen=True)
class Reduced:
    """One mean or sum in a loss: over how many ``terms``, and what each of them is divided by in all.

    ``node`` is autograd's name for it; ``mean`` says whether it divides by its own number of terms.
    """

    node: str
    terms: float
    divisor: float
    mean: bool


def reductions(loss: torch.Tensor) -> list[Reduced] | None:
    """Every mean or sum that ``loss`` consists of, in the graph's order; None where the walk meets what it cannot read.

    A loss of several parts is a list of several. What is multiplied by a tensor with several elements is no constant.
    """
    found: list[Reduced] = []
    return found if loss.grad_fn is not None and _walk(loss.grad_fn, 1.0, found, 0) and found else None


def _walk(node: Any, divisor: float, found: list[Reduced], depth: int) -> bool:
    """Whether everything below ``node`` could be read; ``divisor`` is what was met above it."""
    name = str(node.name()).rstrip("0123456789")
    below = [following for following, _ in node.next_functions if following is not None]
    if depth > _DEEPEST:
        return False
    if name in _PLAIN and len(below) == 1:
        return _walk(below[0], divisor, found, depth + 1)
    if name in _SPREAD:
        return all(_walk(each, divisor, found, depth + 1) for each in below if _reduces(each))
    if name in ("MulBackward", "DivBackward") and len(below) == 1:
        factor = _constant(node)
        if not factor:
            return False
        return _walk(below[0], divisor / factor if name == "MulBackward" else divisor * factor, found, depth + 1)
    if name in ("MeanBackward", "SumBackward"):
        return _mean_or_sum(node, name, below, divisor, found, depth)
    terms = _terms_of_loss(node)
    if terms is None:
        return False
    count, mean = terms
    found.append(Reduced(name.removesuffix("Backward"), count, divisor * (count if mean else 1.0), mean))
    return True


def _reduces(node: Any) -> bool:
    """No parameter itself: a sum with a constant tensor or a leaf is not a loss over examples."""
    return "AccumulateGrad" not in str(node.name())


def _mean_or_sum(node: Any, name: str, below: list[Any], divisor: float, found: list[Reduced], depth: int) -> bool:
    sizes = tuple(node._saved_self_sym_sizes)
    number = 1.0
    for size in sizes:
        number *= int(size)
    whole = divisor * number if name == "MeanBackward" else divisor
    nested = below and str(below[0].name()).rstrip("0123456789") in ("StackBackward", "CatBackward")
    if (number == 1 or nested) and below and _walk(below[0], whole, found, depth + 1):
        return True
    terms = number if name == "MeanBackward" else _unmasked(below, number)
    found.append(Reduced(name.removesuffix("Backward"), terms, whole, name == "MeanBackward"))
    return True


def _unmasked(below: list[Any], number: float) -> float:
    """How many of the terms of a sum count, where a mask of zeros and ones stands before it."""
    if below and str(below[0].name()).startswith("MulBackward"):
        for saved in ("_saved_other", "_saved_self"):
            mask = getattr(below[0], saved, None)
            if isinstance(mask, torch.Tensor) and mask.numel() > 1 and bool(((mask == 0) | (mask == 1)).all()):
                counted: float = mask.sum().item() * max(1.0, number / mask.numel())
                return counted
    return number


def _constant(node: Any) -> float | None:
    """The number by which a node multiplies or divides; None where that is no single number."""
    for saved in ("_saved_other", "_saved_self"):
        value = getattr(node, saved, None)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return float(value)
        if isinstance(value, int | float):
            return float(value)
    return None


def _terms_of_loss(node: Any) -> tuple[float, bool] | None:
    """Of a loss function's node its number of terms, and whether it takes their mean."""
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (MEAN, SUM):
        return None
    if hasattr(node, "_saved_total_weight"):
        return float(_total_weight(node, reduction)), reduction == MEAN
    return float(node._saved_self.numel()), reduction == MEAN


def _total_weight(node: Any, reduction: int) -> float:
    """The weights that count in a negative log likelihood: the number of targets that are not ignored, without any."""
    if reduction == MEAN or node._saved_weight is not None:
        return float(node._saved_total_weight)
    ignored = int(node._saved_ignore_index)
    ignored = ignored - 2**64 if ignored >= 2**63 else ignored
    return float((node._saved_target != ignored).sum())
