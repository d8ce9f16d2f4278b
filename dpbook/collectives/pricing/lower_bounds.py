"""The least that any all-reduce can do, where sums are made at the ranks."""

from dpbook.core import check_float, check_int


def latency_lower_bound(world: int) -> int:
    """Rounds that any all-reduce takes at least: ⌈log2 N⌉, since what a rank knows can at most double in a round.

    Holds where a rank sends to one and receives from one other in a round. Raises `InvalidArgument`.
    """
    return (check_int("world", world, 1) - 1).bit_length()


def bandwidth_lower_bound(world: int, nbytes: float) -> float:
    """Bytes that some rank must send in any all-reduce of ``nbytes``: 2(N − 1)/N · nbytes.

    Holds where sums are made at the ranks (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", 2009); a switch that adds evades it. Raises `InvalidArgument`.
    """
    check_int("world", world, 1)
    return 2 * (world - 1) / world * check_float("nbytes", nbytes, minimum=0)
