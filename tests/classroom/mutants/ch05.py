"""Wrong answers to exercise 05, each with the mistake that people make."""

import numpy as np

from dpbook import collectives
from dpbook.collectives import Round, Schedule
from tests.classroom.mutants.edits import Mutant, edit, named


def no_ring(buffers):
    """Right at the end, but nothing went round: the half-way state shows it."""
    total = sum(buffers)
    return [buffer.copy() for buffer in buffers], [total] * len(buffers)


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


CUT, BUFFER_CUT = "collectives.chunk_bounds(len(x), n)", "collectives.chunk_bounds(len(buffers[0]), n)"
FLOORED = "[c * (len(buffers[0]) // n) for c in range(n + 1)]"
ADDED = "ranks[(r + 1) % n][chunk(r - s)] += sent[r]"
SENT, RECEIVED = "chunk(r - s - 1), (r + 1) % n", "chunk(r - s - 2), (r - 1) % n"
SUM_BY_HAND = """\
arrived = np.empty_like(chunk(r - s - 2))
        comm.sendrecv(chunk(r - s - 1), (r + 1) % n, arrived, (r - 1) % n)
        chunk(r - s - 2)[:] += arrived"""
DIVIDE, ROUNDS, OWNS = "sizes that divide", "log2(N) rounds", "rank r owns chunk r"

MUTANTS = (
    edit("05.1", "as given", {BUFFER_CUT: FLOORED, ADDED: ADDED.replace("r - s", "r - s - 1")}, DIVIDE),
    edit("05.1", "one round short", {ADDED: f"{ADDED} * (s < n - 2)"}, DIVIDE),
    Mutant("05.1", "no ring at all", no_ring, DIVIDE),
    edit("05.1", "tail forgotten", {BUFFER_CUT: FLOORED}, "sizes that do not divide"),
    edit(
        "05.1",
        "small buffers forgotten",
        {BUFFER_CUT: f"{BUFFER_CUT} if len(buffers[0]) >= n else [0] * (n + 1)"},
        "fewer elements than ranks",
    ),
    edit("05.1", "half-way is not copied", {"half = [x.copy() for x in ranks]": "half = ranks"}, DIVIDE),
    edit("05.1", "in place", {"[buffer.copy() for buffer in buffers]": "buffers"}, "inputs unchanged"),
    Mutant("05.2", "one half only", (16, 15), "rounds"),
    Mutant("05.2", "N in place of N - 1", (16, 32), "rounds"),
    Mutant("05.2", "the rounds of the chapter's cluster", (64, 126), "ranks"),
    Mutant("05.2", "the whole over the rest", (15, 28), "ranks"),
    edit("05.3", "neighbour in place of partner", {"ranks ^ 2**s": "(ranks + 1) % world"}, ROUNDS),
    edit("05.3", "stores in place of adding", {"0, True": "0, False"}, ROUNDS),
    edit("05.3", "always the same partner", {"ranks ^ 2**s": "ranks ^ 1"}, ROUNDS),
    Mutant("05.3", "the tree itself", collectives.tree, ROUNDS),
    Mutant("05.3", "everyone to everyone", everyone_to_everyone, ROUNDS),
    Mutant("05.3", "one speaks for two", one_speaks_for_two, "bytes"),
    edit("05.4", "the chapter's owners", {"r - s - 1": "r - s", "r - s - 2": "r - s - 1"}, OWNS),
    edit("05.4", "off by one to the other side", {"r - s - 1": "r - s + 1", "r - s - 2": "r - s"}, OWNS),
    edit("05.4", "everyone sends first", {f"sendrecv({SENT}, ": f"send({SENT})\n        comm.recv("}, OWNS),
    edit("05.4", "sum by hand", {f'comm.sendrecv({SENT}, {RECEIVED}, op="sum")': SUM_BY_HAND}, OWNS),
    edit("05.4", "tail left out", {CUT: "[c * (len(x) // n) for c in range(n + 1)]"}, "any size"),
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
    ("05.4", lambda comm, x: None),
    *named(MUTANTS, "05.4", "the chapter's owners"),
)
"""Answers that must not earn a single point."""
