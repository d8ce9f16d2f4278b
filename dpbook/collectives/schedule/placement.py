"""Placements: whose contributions each rank's copy of a chunk holds.

For one chunk that is a `Holding`: a mapping from a rank to the set of ranks whose contributions are summed
in its copy. A rank that is not listed holds nothing that may be relied on. Three holdings do for most
schedules: partial (each rank holds its own contribution), complete on one rank, complete everywhere.
Composed schedules pass through others, such as "each node's sum on one rank of the node".
"""

import copyreg
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from dpbook.core import InvalidArgument, check_int, check_type, plural

Holding = Mapping[int, frozenset[int]]
Placement = tuple[Holding, ...]  # one holding per chunk

copyreg.pickle(MappingProxyType, lambda holding: (_own, (dict(holding),)))  # so that a schedule can be pickled


@lru_cache(maxsize=64)
def everyone(world: int) -> frozenset[int]:
    """All ranks; one object per world, so that placements share it and compare at once."""
    return frozenset(range(check_int("world", world, 1)))


@lru_cache(maxsize=64)
def partial(world: int) -> Holding:
    """Each rank holds its own contribution: where every all-reduce begins."""
    return MappingProxyType({rank: frozenset((rank,)) for rank in range(check_int("world", world, 1))})


@lru_cache(maxsize=64)
def complete_everywhere(world: int) -> Holding:
    """Every rank holds the complete sum: where every all-reduce ends."""
    return complete_on(range(world), world)


def complete_on(ranks: Iterable[int], world: int) -> Holding:
    """The given ranks hold the complete sum, the others nothing of use. Raises `InvalidArgument`."""
    whole = everyone(world)
    check_type("ranks", ranks, Iterable, "a collection of ranks")
    return MappingProxyType({check_int("rank", rank, 0, world - 1): whole for rank in ranks})


def describe(placement: Placement, world: int) -> str:
    """A placement in a few words."""
    for words, holding in (
        ("complete on every rank", complete_everywhere(world)),
        ("partial on every rank", partial(world)),
    ):
        if all(h is holding or h == holding for h in placement):
            return words
    chunks = [f"chunk {c}: {_describe_holding(h, world)}" for c, h in enumerate(placement[:4])]
    return "; ".join(chunks) + ("; …" if len(placement) > 4 else "")


def _describe_holding(holding: Holding, world: int) -> str:
    if not holding:
        return "not used"
    if all(whose == everyone(world) for whose in holding.values()):
        return f"complete on {ranks_in_words(holding)}"
    return f"partial on {ranks_in_words(holding)}"


def ranks_in_words(ranks: Iterable[int], most: int = 8) -> str:
    """'rank 3' or 'ranks 0, 2, 5'; a long list is cut."""
    listed = sorted(ranks)
    shown = ", ".join(map(str, listed[:most])) + (f", … ({len(listed)} in all)" if len(listed) > most else "")
    return f"rank {shown}" if len(listed) == 1 else f"ranks {shown}"


def check_placement(name: str, placement: Placement, world: int, n_chunks: int) -> Placement:
    """``placement`` as a tuple of what nobody can change. Raises `InvalidArgument` unless it fits the schedule."""
    if not isinstance(placement, Sequence) or not all(isinstance(holding, Mapping) for holding in placement):
        raise InvalidArgument(name, placement, "a holding per chunk, as `partial` and `complete_on` make them")
    if len(placement) != n_chunks:
        raise InvalidArgument(name, plural(len(placement), "holding"), f"one holding per chunk, {n_chunks}")
    own = {id(holding): _own(holding) for holding in placement}  # most chunks share one
    groups: dict[int, Iterable[int]] = {id(group): group for h in own.values() for group in (h, *h.values())}
    for group in groups.values():
        if not everyone(world).issuperset(group):
            raise InvalidArgument(name, sorted(group), f"about ranks in 0..{world - 1}")
    return tuple(own[id(holding)] for holding in placement)


def _own(holding: Holding) -> MappingProxyType[int, frozenset[int]]:
    return holding if isinstance(holding, MappingProxyType) else MappingProxyType(dict(holding))
