"""All-reduce in log2 N rounds: in each, ranks that are twice as far apart exchange what they have.

Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). A world that is
no power of two is *folded*: each rank too many gives its buffer to a partner first and gets the result from it last.
"""

import numpy as np

from dpbook.collectives.schedule.composition import embed
from dpbook.collectives.schedule.placement import complete_on
from dpbook.collectives.schedule.rounds import LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import check_int


def recursive_doubling(world: int) -> Schedule:
    """In round s rank r exchanges its whole sum with rank r xor 2^s; log2 N rounds, and 2 more in a folded world.

    The two ranks of a pair add in different order, x + y and y + x. Those are the same bits, NaN payloads apart, so all
    ranks end with the same sum, bit for bit; ranks folded away get a copy of it, so in their worlds that holds as well.
    """
    core = _core(world)
    ranks = np.arange(core)
    rounds = LazyRounds(core.bit_length() - 1, lambda s: Round(ranks, ranks ^ 2**s, np.zeros_like(ranks), reduce=True))
    return _fold(Schedule(core, 1, rounds), world).named(f"recursive_doubling(world={world})")


def halving_doubling(world: int) -> Schedule:
    """Recursive halving reduce-scatter, then recursive doubling all-gather (Rabenseifner's algorithm).

    As many chunks as the largest power of two in the world; 2 log2 of those rounds, and 2 more in a folded world.
    """
    core = _core(world)
    halving = _halving(core).then(_doubling(core))
    return _fold(halving, world).named(f"halving_doubling(world={world})")


def _halving(world: int) -> Schedule:
    """Reduce-scatter: ranks r and r xor d, for d = N/2, …, 2, 1, each send the half that the other will own.

    Rank r ends with chunk r. Before distance d it still has to do with the chunks r xor x for x < 2d.
    """
    depth = world.bit_length() - 1
    after = tuple(complete_on([chunk], world) for chunk in range(world))
    rounds = LazyRounds(depth, lambda s: _exchange(world, world >> (s + 1), reduce=True))
    return Schedule(world, world, rounds, after=after)


def _doubling(world: int) -> Schedule:
    """All-gather: the same exchanges backwards; rank r begins with chunk r and has twice as many after each round."""
    before = tuple(complete_on([chunk], world) for chunk in range(world))
    rounds = LazyRounds(world.bit_length() - 1, lambda s: _exchange(world, 1 << s, reduce=False))
    return Schedule(world, world, rounds, before=before)


def _exchange(world: int, distance: int, reduce: bool) -> Round:
    """Each rank r sends rank r xor d the chunks that lie on that rank's side (to add) or on its own (to keep)."""
    source = np.repeat(np.arange(world), distance)
    offset = np.tile(np.arange(distance), world)
    return Round(source, source ^ distance, source ^ (offset + distance if reduce else offset), reduce)


def _core(world: int) -> int:
    """The largest power of two that is at most ``world``."""
    return 1 << (check_int("world", world, 1).bit_length() - 1)


def _fold(schedule: Schedule, world: int) -> Schedule:
    """``schedule``, an all-reduce of a power of two, for a larger ``world``: rank core + i works through rank i."""
    core, n_chunks = schedule.world, schedule.n_chunks
    if core == world:
        return schedule
    extras = np.repeat(np.arange(core, world), n_chunks)
    chunks = np.tile(np.arange(n_chunks), world - core)
    pairs = [range(rank, world, core) for rank in range(core)]
    inner = embed(schedule, world, range(core), speaks_for=pairs)
    give = Schedule(world, n_chunks, [Round(extras, extras - core, chunks, reduce=True)], after=inner.before)
    back = Schedule(world, n_chunks, [Round(extras - core, extras, chunks, reduce=False)], before=inner.after)
    return give.then(inner).then(back)
