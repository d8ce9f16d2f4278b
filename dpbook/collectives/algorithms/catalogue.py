"""Every all-reduce that depends on the number of ranks alone, with the claims of the literature about it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpbook.collectives.algorithms.rings import ring
from dpbook.collectives.algorithms.trees import halving_doubling, parameter_server, recursive_doubling, tree
from dpbook.collectives.pricing import closed_forms
from dpbook.collectives.pricing.alpha_beta import AlphaBeta
from dpbook.collectives.pricing.topology import Link
from dpbook.collectives.schedule.schedule import Schedule


@dataclass(frozen=True)
class Algorithm:
    """An all-reduce. Call it with the number of ranks N to get its `Schedule`.

    ``rounds(N)`` is its number of rounds, and ``closed_form(N, link)`` its time as a formula. ``worlds(N)`` is whether
    it is defined for N ranks; for others ``build`` raises `InvalidArgument`. All three are the claims of its paper, and
    the tests compare the schedule with them.
    """

    build: Callable[[int], Schedule]
    rounds: Callable[[int], int]
    closed_form: Callable[[int, Link], AlphaBeta]
    worlds: Callable[[int], bool] = lambda world: True

    def __call__(self, world: int) -> Schedule:
        return self.build(world)


def _folding(world: int) -> int:
    """Return the further rounds of a world that is no power of two."""
    return 0 if math.log2(world).is_integer() else 2


ALGORITHMS = {
    "parameter_server": Algorithm(
        parameter_server, rounds=lambda world: 2 * (world - 1), closed_form=closed_forms.parameter_server
    ),
    "tree": Algorithm(tree, rounds=lambda world: 2 * math.ceil(math.log2(world)), closed_form=closed_forms.tree),
    "recursive_doubling": Algorithm(
        recursive_doubling,
        rounds=lambda world: math.floor(math.log2(world)) + _folding(world),
        closed_form=closed_forms.recursive_doubling,
    ),
    "ring": Algorithm(ring, rounds=lambda world: 2 * (world - 1), closed_form=closed_forms.ring),
    "halving_doubling": Algorithm(
        halving_doubling,
        rounds=lambda world: 2 * math.floor(math.log2(world)) + _folding(world),
        closed_form=closed_forms.halving_doubling,
    ),
}
"""Every all-reduce by name."""
