"""Model FLOPs utilisation, MFU: the one definition that program, report, planner and chapter 12 share.

Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), appendix B.
"""

from dpbook.core import check_float


def operations_per_token(
    weights: float, trained: float | None = None, *, layers: int = 0, width: int = 0, context: int = 0
) -> tuple[float, float]:
    """Operations of forward and of backward of a transformer for a token.

    Forward takes 2 for each of the ``weights`` of its matrices, backward 2 for the gradient of what came in and 2 more
    for each weight that is ``trained`` (default: all). The scores of attention, and what they mix, take
    12 · ``layers`` · ``width`` · ``context``, a third of it in forward: in whole, although a causal mask leaves out
    half, and 0 where they are left out. What is recomputed does not count.
    """
    scores = 4.0 * layers * width * context
    return 2 * weights + scores, 2 * weights + 2 * (weights if trained is None else trained) + 2 * scores


def utilisation(tokens_per_second: float, operations: float, peak: float) -> float:
    """MFU: the share of ``peak``, in operations per second, that so many tokens of so many operations each are.

    The peak is that of the precision in which the products are computed, of as many devices as reach the rate.
    """
    return tokens_per_second * operations / check_float("peak", peak, above=0)
