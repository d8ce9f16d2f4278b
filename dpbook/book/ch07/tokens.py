"""How many tokens per GPU hide the sync of a language model."""

from dpbook.core import check_float, check_int

BACKWARD_FLOPS = 4
"""Operations of backward per parameter and token: two matrix products, each of one multiplication and one addition
(Kaplan et al., "Scaling Laws for Neural Language Models", 2020, count 2 for forward and 4 for backward)."""


def tokens_to_hide(flops_per_second: float, bandwidth: float, itemsize: int = 2, world: int | None = None) -> float:
    """Return the tokens per GPU and step above which backward takes longer than the all-reduce of the gradients.

    Backward takes 4PT/F and a ring 2(N − 1)/N · itemsize · P/B, which the number of parameters P leaves alone: for
    gradients of 2 bytes on many ranks T > F/B. Latencies and the last bucket, which nothing hides, are left out.

    Args:
        flops_per_second: F, operations per second that one GPU reaches in training, not its peak.
        bandwidth: B, *bytes* per second that one GPU sends.
        itemsize: bytes per element of a gradient.
        world: N; by default so many that (N − 1)/N is 1. A world of 1 needs no tokens.

    Raises:
        InvalidArgument: F or B is not above 0, or itemsize or world below 1.
    """
    rate = check_float("flops_per_second", flops_per_second, above=0)
    share = 1.0 if world is None else 1 - 1 / check_int("world", world, 1)
    traffic = 2 * share * check_int("itemsize", itemsize, 1)
    return traffic * rate / (BACKWARD_FLOPS * check_float("bandwidth", bandwidth, above=0))
