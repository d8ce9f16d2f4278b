"""A second implementation of schedules in plain Python, and schedules to test with it."""

from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.collectives import ALGORITHMS, Round, Schedule, relabel

WORLDS = [*range(1, 10), 16]


def worlds(name):
    """The worlds of the tests that an algorithm is made for."""
    return [world for world in WORLDS if ALGORITHMS[name].worlds(world)]


def plain(schedule, buffers):
    """Message by message, each reading a full snapshot of the state before its round."""
    offsets = schedule.bounds(len(buffers[0]), buffers[0].itemsize).tolist()
    state = [[row[a:b].copy() for a, b in pairwise(offsets)] for row in buffers]
    for round_ in schedule.rounds:
        before = [[chunk.copy() for chunk in row] for row in state]
        for source, dest, chunk, reduce in round_:
            arriving = before[source][chunk]
            state[dest][chunk] = before[dest][chunk] + arriving if reduce else arriving
    return np.stack([np.concatenate(row) for row in state])


def contributions(schedule):
    """Per rank and chunk, how often each contribution is in the copy at the end; None if something unknown is."""
    state = [
        [Counter(dict.fromkeys(h[rank], 1)) if rank in h else None for h in schedule.before]
        for rank in range(schedule.world)
    ]
    for round_ in schedule.rounds:
        before = [list(row) for row in state]
        for source, dest, chunk, reduce in round_:
            mine, arriving = before[dest][chunk], before[source][chunk]
            if reduce:
                state[dest][chunk] = None if mine is None or arriving is None else mine + arriving
            else:
                state[dest][chunk] = arriving
    return state


def by_hand(schedule, size, itemsize, topology):
    """Seconds of each round, and bytes through each port, one message at a time."""
    offsets = schedule.bounds(size, itemsize)
    per_node, seconds, ports = topology.per_node, [], Counter()
    for round_ in schedule.rounds:
        load = Counter()
        for m in round_:
            nbytes = int(offsets[m.chunk + 1] - offsets[m.chunk]) * itemsize
            for rank, way in ((m.source, "sent"), (m.dest, "received")):
                node, local = divmod(rank, per_node)
                if m.source // per_node == m.dest // per_node:
                    load["within", way, node, local] += nbytes
                else:
                    load["between", way, node, local * topology.ports // per_node] += nbytes
        links = {"within": topology.within, "between": topology.between}
        times = [links[kind].latency + n / links[kind].bandwidth for (kind, *_), n in load.items() if n]
        seconds.append(max(times, default=0))
        ports += load
    return seconds, ports


def broken_promises(schedule):
    """Every (chunk, rank) that does not hold each promised contribution exactly once, in order."""
    state = contributions(schedule)
    return [
        (chunk, rank)
        for chunk, holding in enumerate(schedule.after)
        for rank in sorted(holding)
        if state[rank][chunk] != Counter(dict.fromkeys(holding[rank], 1))
    ]


@cache
def collective_schedules(world):
    """Every schedule that the package makes for a world, by name."""
    made = {name: make(world) for name, make in ALGORITHMS.items() if make.worlds(world)}
    made |= {"reduce_scatter": collectives.reduce_scatter(world), "all_gather": collectives.all_gather(world)}
    made["two_phase"] = collectives.two_phase(world)
    for root in range(world):
        made[f"reduce to {root}"] = collectives.reduce(world, root)
        made[f"broadcast from {root}"] = collectives.broadcast(world, root)
    for nodes in divisors(world):
        made[f"hierarchical ring, {nodes} nodes"] = collectives.hierarchical_ring(nodes, world // nodes)
        made[f"ring per port, {nodes} nodes"] = collectives.ring_per_port(nodes, world // nodes)
    return made


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


ALL_SCHEDULES = [(world, name) for world in WORLDS for name in collective_schedules(world)]


def torch_reduce_scatter(world):
    """A reduce-scatter after which rank r holds chunk r, as torch's does."""
    return relabel(collectives.reduce_scatter(world), chunks=[(c - 1) % world for c in range(world)])


@st.composite
def rounds(draw, world, n_chunks):
    """One legal round: every cell is written at most once; some messages are mirrored into an exchange."""
    cells = st.tuples(st.integers(0, world - 1), st.integers(0, n_chunks - 1))
    messages = []
    taken = set()
    for dest, chunk in draw(st.lists(cells, max_size=6)):
        source = (dest + draw(st.integers(1, world - 1))) % world
        pairs = [(source, dest), (dest, source)] if draw(st.booleans()) else [(source, dest)]
        for a, b in pairs:
            if (b, chunk) not in taken:
                taken.add((b, chunk))
                messages.append((a, b, chunk, draw(st.booleans())))
    return Round.from_messages(messages)


@st.composite
def legal_schedules(draw, max_world=5, max_chunks=3, max_rounds=6):
    """Any legal schedule, with the placements of an all-reduce (which it need not keep)."""
    world, n_chunks = draw(st.integers(2, max_world)), draw(st.integers(1, max_chunks))
    made = draw(st.lists(rounds(world, n_chunks), max_size=max_rounds))
    return Schedule(world, n_chunks, made, name="drawn")


def integers(world, size, dtype=np.float64):
    """Integer-valued buffers, so that sums are exact in any order: rank r holds distinct multiples of r + 1."""
    return (np.arange(1, world + 1)[:, None] * np.arange(1, size + 1) % 251).astype(dtype)
