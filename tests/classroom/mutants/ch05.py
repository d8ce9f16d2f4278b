"""Wrong answers to exercise 05, each with the mistake that people make."""

import numpy as np

from dpbook import collectives
from dpbook.classroom.tasks.judging import Mutant
from dpbook.collectives import Round, Schedule


def _ring(buffers, cut, add_to=lambda r, s: r - s, rounds=lambda n: n - 1):
    n = len(buffers)
    ranks = [buffer.copy() for buffer in buffers]

    def chunk(c):
        return slice(cut[c % n], cut[c % n + 1])

    for s in range(rounds(n)):
        sent = [ranks[r][chunk(r - s)].copy() for r in range(n)]
        for r in range(n):
            ranks[(r + 1) % n][chunk(add_to(r, s))] += sent[r]
    half = [x.copy() for x in ranks]
    for s in range(n - 1):
        sent = [ranks[r][chunk(r + 1 - s)].copy() for r in range(n)]
        for r in range(n):
            ranks[(r + 1) % n][chunk(r + 1 - s)] = sent[r]
    return half, ranks


def _even(buffers):
    return collectives.chunk_bounds(len(buffers[0]), len(buffers))


def as_given(buffers):
    n = len(buffers)
    return _ring(buffers, [c * (len(buffers[0]) // n) for c in range(n + 1)], add_to=lambda r, s: r - s - 1)


def tail_forgotten(buffers):
    n = len(buffers)
    return _ring(buffers, [c * (len(buffers[0]) // n) for c in range(n + 1)])


def small_buffers_forgotten(buffers):
    return _ring(buffers, _even(buffers) if len(buffers[0]) >= len(buffers) else [0] * (len(buffers) + 1))


def one_round_short(buffers):
    return _ring(buffers, _even(buffers), rounds=lambda n: max(0, n - 2))


def in_place(buffers):
    half, end = _ring(buffers, _even(buffers))
    for buffer, total in zip(buffers, end, strict=True):
        buffer[:] = total
    return half, buffers


def no_ring(buffers):
    """Right at the end, but nothing went round: the half-way state shows it."""
    total = sum(buffers)
    return [buffer.copy() for buffer in buffers], [total] * len(buffers)


def half_double(world):
    ranks = np.arange(world)
    return Schedule(world, 1, [Round.of(ranks, (ranks + 1) % world, 0, True) for _ in range(world.bit_length() - 1)])


def copies(world):
    ranks = np.arange(world)
    return Schedule(world, 1, [Round.of(ranks, ranks ^ 2**s, 0, False) for s in range(world.bit_length() - 1)])


def always_the_neighbour(world):
    ranks = np.arange(world)
    return Schedule(world, 1, [Round.of(ranks, ranks ^ 1, 0, True) for _ in range(world.bit_length() - 1)])


def everyone_to_everyone(world):
    """Every chunk goes straight to its owner and back: 2(N - 1) rounds."""
    ranks = np.arange(world)
    rounds = [Round.of(ranks, (ranks + s) % world, (ranks + s) % world, True) for s in range(1, world)]
    rounds += [Round.of(ranks, (ranks + s) % world, ranks, False) for s in range(1, world)]
    return Schedule(world, world, rounds)


def one_speaks_for_two(world):
    """Right and as quick: but in the last round only one of each pair sends, to two receivers."""
    ranks = np.arange(world)
    depth = world.bit_length() - 1
    rounds = [Round.of(ranks, ranks ^ 2**s, 0, True) for s in range(depth)]
    if depth > 1:
        receivers = np.arange(world)
        rounds[-1] = Round.of((receivers ^ 2 ** (depth - 1)) & ~1, receivers, 0, True)
    return Schedule(world, 1, rounds)


def _program(first_sent):
    def program(comm, x):
        n, r = comm.world_size, comm.rank
        cut = collectives.chunk_bounds(len(x), n)

        def chunk(c):
            return x[cut[c % n] : cut[c % n + 1]]

        for s in range(n - 1):
            comm.sendrecv(chunk(r - s + first_sent), (r + 1) % n, chunk(r - s + first_sent - 1), (r - 1) % n, op="sum")

    return program


def everyone_sends_first(comm, x):
    n, r = comm.world_size, comm.rank
    cut = collectives.chunk_bounds(len(x), n)

    def chunk(c):
        return x[cut[c % n] : cut[c % n + 1]]

    for s in range(n - 1):
        comm.send(chunk(r - s - 1), (r + 1) % n)
        comm.recv(chunk(r - s - 2), (r - 1) % n, op="sum")


def whole_buffers(comm, x):
    """Rank 0 adds everything and sends everybody the whole sum."""
    if comm.rank == 0:
        for source in range(1, comm.world_size):
            comm.recv(x, source, op="sum")
        for to in range(1, comm.world_size):
            comm.send(x, to)
    else:
        comm.send(x, 0)
        comm.recv(x, 0)


def sum_by_hand(comm, x):
    n, r = comm.world_size, comm.rank
    cut = collectives.chunk_bounds(len(x), n)

    def chunk(c):
        return x[cut[c % n] : cut[c % n + 1]]

    for s in range(n - 1):
        arrived = np.empty_like(chunk(r - s - 2))
        comm.sendrecv(chunk(r - s - 1), (r + 1) % n, arrived, (r - 1) % n)
        chunk(r - s - 2)[:] += arrived


def tail_left_out(comm, x):
    n, r = comm.world_size, comm.rank
    size = len(x) // n

    def chunk(c):
        return x[c % n * size : (c % n + 1) * size]

    for s in range(n - 1):
        comm.sendrecv(chunk(r - s - 1), (r + 1) % n, chunk(r - s - 2), (r - 1) % n, op="sum")


def nothing(comm, x):
    pass


MUTANTS = (
    Mutant("05.1", "as given", as_given, "sizes that divide"),
    Mutant("05.1", "one round short", one_round_short, "sizes that divide"),
    Mutant("05.1", "no ring at all", no_ring, "sizes that divide"),
    Mutant("05.1", "tail forgotten", tail_forgotten, "sizes that do not divide"),
    Mutant("05.1", "small buffers forgotten", small_buffers_forgotten, "fewer elements than ranks"),
    Mutant("05.1", "in place", in_place, "inputs unchanged"),
    Mutant("05.2", "one half only", (16, 15), "rounds"),
    Mutant("05.2", "N in place of N - 1", (16, 32), "rounds"),
    Mutant("05.2", "the rounds of the chapter's cluster", (64, 126), "ranks"),
    Mutant("05.2", "the whole over the rest", (15, 28), "ranks"),
    Mutant("05.3", "neighbour in place of partner", half_double, "log2(N) rounds"),
    Mutant("05.3", "stores in place of adding", copies, "log2(N) rounds"),
    Mutant("05.3", "always the same partner", always_the_neighbour, "log2(N) rounds"),
    Mutant("05.3", "the tree itself", collectives.tree, "log2(N) rounds"),
    Mutant("05.3", "everyone to everyone", everyone_to_everyone, "log2(N) rounds"),
    Mutant("05.3", "one speaks for two", one_speaks_for_two, "bytes"),
    Mutant("05.4", "the chapter's owners", _program(first_sent=0), "rank r owns chunk r"),
    Mutant("05.4", "off by one to the other side", _program(first_sent=1), "rank r owns chunk r"),
    Mutant("05.4", "everyone sends first", everyone_sends_first, "rank r owns chunk r"),
    Mutant("05.4", "sum by hand", sum_by_hand, "rank r owns chunk r"),
    Mutant("05.4", "tail left out", tail_left_out, "any size"),
    Mutant("05.4", "whole buffers through rank 0", whole_buffers, "bytes"),
    Mutant("05.5", "index in place of number", (2, 2, 4), "round"),
    Mutant("05.5", "where it is missing at the end", (3, 0, 4), "rank and chunk"),
    Mutant("05.5", "the sender", (3, 1, 4), "rank and chunk"),
    Mutant("05.5", "the round after, where it shows", (4, 2, 4), "round"),
    Mutant("05.5", "the chunk named after its owner", (3, 2, 3), "rank and chunk"),
)

WORTHLESS = (
    ("05.1", lambda buffers: [sum(buffers)] * len(buffers)),
    ("05.3", collectives.tree),
    ("05.3", collectives.ring),
    ("05.4", nothing),
    ("05.4", _program(first_sent=0)),
)
"""Answers that must not earn a single point."""
