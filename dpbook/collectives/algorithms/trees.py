"""Trees and exchanges: the parameter server, binomial trees, recursive doubling, halving and doubling, two phases.

In a binomial tree half of the ranks that still take part send their whole buffer. In a round of recursive doubling,
ranks at twice the distance of the round before exchange their sums. A world that is no power of two is *folded*: each
excess rank first gives its buffer to a partner, and gets the result from it at the end. Names follow MPI and Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). Every function takes the
number of ranks and raises `InvalidArgument` if it is below 1.
"""

import numpy as np

from dpbook.collectives.schedule.chunks import complete_on
from dpbook.collectives.schedule.rounds import IntArray, LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule, embed
from dpbook.core import check_int


def parameter_server(world: int) -> Schedule:
    """Every rank sends its whole buffer to rank 0, one after another, and gets the sum back the same way."""
    check_int("world", world, 1)

    def make(s: int) -> Round:
        worker = s % (world - 1) + 1
        return Round.of(worker, 0, 0, True) if s < world - 1 else Round.of(0, worker, 0, False)

    return Schedule(world, 1, LazyRounds(2 * (world - 1), make), name=f"parameter_server(world={world})")


def reduce(world: int, root: int = 0) -> Schedule:
    """Binomial tree, upwards: in round s the ranks at distance 2^s send their sums towards ``root``."""
    depth, ranks = _tree(world, root)

    def make(s: int) -> Round:
        parents = np.arange(0, world - 2**s, 2 ** (s + 1))
        return Round(ranks[parents + 2**s], ranks[parents], np.zeros_like(parents), reduce=True)

    after = (complete_on([root], world),)
    return Schedule(world, 1, LazyRounds(depth, make), after=after, name=f"reduce(world={world})")


def broadcast(world: int, root: int = 0) -> Schedule:
    """Binomial tree, downwards: in each round every rank that has the buffer sends it to one that has not."""
    depth, ranks = _tree(world, root)

    def make(s: int) -> Round:
        step = 2 ** (depth - 1 - s)
        parents = np.arange(0, world - step, 2 * step)
        return Round(ranks[parents], ranks[parents + step], np.zeros_like(parents), reduce=False)

    before = (complete_on([root], world),)
    return Schedule(world, 1, LazyRounds(depth, make), before=before, name=f"broadcast(world={world})")


def tree(world: int) -> Schedule:
    """Binomial tree all-reduce: reduce to rank 0, then broadcast; 2⌈log2 world⌉ rounds of the whole buffer."""
    return reduce(world).then(broadcast(world)).named(f"tree(world={world})")


def _tree(world: int, root: int) -> tuple[int, IntArray]:
    """Return the depth of a binomial tree over ``world`` ranks, and the ranks in its order, ``root`` first."""
    world = check_int("world", world, 1)
    check_int("root", root, 0, world - 1)
    return (world - 1).bit_length(), (np.arange(world) + root) % world


def recursive_doubling(world: int) -> Schedule:
    """All-reduce in which rank r exchanges its whole sum with rank r xor 2^s in round s.

    It takes log2 N rounds, and 2 more in a folded world. The two ranks of a pair add in different order, x + y and y +
    x. Those are the same bits, except NaN payloads, so all ranks end with the same sum, bit for bit. Ranks folded away
    get a copy of it.
    """
    core = _core(world)
    ranks = np.arange(core)
    rounds = LazyRounds(core.bit_length() - 1, lambda s: Round(ranks, ranks ^ 2**s, np.zeros_like(ranks), reduce=True))
    return _fold(Schedule(core, 1, rounds), world).named(f"recursive_doubling(world={world})")


def halving_doubling(world: int) -> Schedule:
    """Recursive halving reduce-scatter, then recursive doubling all-gather (Rabenseifner's algorithm).

    It has P chunks, with P the largest power of two up to the world, and 2 log2 P rounds, and 2 more in a folded world.
    """
    core = _core(world)
    halving = _halving(core).then(_doubling(core))
    return _fold(halving, world).named(f"halving_doubling(world={world})")


def _halving(world: int) -> Schedule:
    """Reduce-scatter: ranks r and r xor d, for d = N/2, …, 2, 1, each send the half that the other will own.

    Rank r ends with chunk r. Before distance d it still handles the chunks r xor x for x < 2d.
    """
    depth = world.bit_length() - 1
    after = tuple(complete_on([chunk], world) for chunk in range(world))
    rounds = LazyRounds(depth, lambda s: _exchange(world, world >> (s + 1), reduce=True))
    return Schedule(world, world, rounds, after=after)


def _doubling(world: int) -> Schedule:
    """All-gather by the same exchanges in reverse; rank r begins with chunk r, and each round doubles its chunks."""
    before = tuple(complete_on([chunk], world) for chunk in range(world))
    rounds = LazyRounds(world.bit_length() - 1, lambda s: _exchange(world, 1 << s, reduce=False))
    return Schedule(world, world, rounds, before=before)


def _exchange(world: int, distance: int, reduce: bool) -> Round:
    """Return a round: rank r sends rank r xor d the chunks of that rank's side (to add) or its own (to store)."""
    source = np.repeat(np.arange(world), distance)
    offset = np.tile(np.arange(distance), world)
    return Round(source, source ^ distance, source ^ (offset + distance if reduce else offset), reduce)


def _core(world: int) -> int:
    """Return the largest power of two that is at most ``world``."""
    return 1 << (check_int("world", world, 1).bit_length() - 1)


def _fold(schedule: Schedule, world: int) -> Schedule:
    """Return ``schedule``, an all-reduce of a power of two, for a larger ``world``; rank core + i uses rank i."""
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


def two_phase(world: int) -> Schedule:
    """Pairwise exchange, an all-to-all in which rank r adds chunk r of all ranks, then an all-gather of the sums.

    In round s of either phase rank r sends to rank r + s + 1: first that rank's chunk, to be added, then its own sum.
    It sends the bytes of a ring in as many rounds, 2(world − 1), but no partial sum: if messages are rounded, a number
    is rounded once on its way to the owner, and its sum once on the way back, for any number of ranks.
    """
    ranks = np.arange(check_int("world", world, 1))
    owned = tuple(complete_on([chunk], world) for chunk in range(world))

    def scatter(s: int) -> Round:
        owners = (ranks + s + 1) % world
        return Round(ranks, owners, owners, reduce=True)

    def gather(s: int) -> Round:
        return Round(ranks, (ranks + s + 1) % world, ranks, reduce=False)

    first = Schedule(world, world, LazyRounds(world - 1, scatter), after=owned)
    second = Schedule(world, world, LazyRounds(world - 1, gather), before=owned)
    return first.then(second).named(f"two_phase(world={world})")
