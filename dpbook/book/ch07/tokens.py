"""How many tokens per GPU hide the sync of a language model."""

from dpbook.core import check_float, check_int

BACKWARD_FLOPS = 4
"""Operations of backward per parameter and token: two matrix products, each of one multiplication and one addition
(Kaplan et al., "Scaling Laws for Neural Language Models", 2020, count 2 for forward and 4 for backward)."""


def tokens_to_hide(
    flops_per_second: float, bandwidth: float, itemsize: int = 2, world: int | None = None, per_active: float = 1.0
) -> float:
    """Return the tokens of a GPU's last micro-batch above which its backward takes longer than the sync.

    Only that backward hides anything: before it no gradient has its final sum. It takes 4T/F per parameter that is
    used, and a ring 2(N − 1)/N · itemsize / W per parameter that is synced: for a dense model in bf16 on many ranks
    T > F/W, whatever its size. Latencies and the last bucket, which nothing hides, are left out.

    Args:
        flops_per_second: F, operations per second that one GPU reaches in training, not its peak.
        bandwidth: W, *bytes* per second that one GPU sends.
        itemsize: bytes per element of a gradient.
        world: N; by default so many that (N − 1)/N is 1. A world of 1 needs no tokens.
        per_active: parameters for each one that a token uses; above 1 in a mixture of experts.

    Raises:
        InvalidArgument: F or W is not above 0, or itemsize, world or per_active below 1.
    """
    rate = check_float("flops_per_second", flops_per_second, above=0)
    share = 1.0 if world is None else 1 - 1 / check_int("world", world, 1)
    traffic = 2 * share * check_int("itemsize", itemsize, 1) * check_float("per_active", per_active, minimum=1)
    return traffic * rate / (BACKWARD_FLOPS * check_float("bandwidth", bandwidth, above=0))
