"""Wrong answers to exercise 06, each with the mistake that people make."""

import numpy as np

from dpbook import collectives
from dpbook.classroom.tasks.judging import Mutant


def _price(round_price, chunks=lambda schedule, size, itemsize: itemsize * np.diff(schedule.bounds(size, itemsize))):
    """A price that adds up ``round_price(sent, received, messages, alpha, beta)`` over the rounds."""

    def price(schedule, size, itemsize, alpha, beta):
        chunk_bytes, seconds = chunks(schedule, size, itemsize), 0.0
        for messages in schedule.rounds:
            sent, received = np.zeros(schedule.world), np.zeros(schedule.world)
            lengths = []
            for message in messages:
                lengths.append(chunk_bytes[message.chunk])
                sent[message.source] += lengths[-1]
                received[message.dest] += lengths[-1]
            if sent.any():
                seconds += round_price(sent, received, lengths, alpha, beta)
        return float(seconds)

    return price


def _even(schedule, size, itemsize):
    return np.full(schedule.n_chunks, size * itemsize / schedule.n_chunks)


def _busiest(sent, received, lengths, alpha, beta):
    return alpha + beta * max(sent.max(), received.max())


def empty_rounds_cost(schedule, size, itemsize, alpha, beta):
    chunks = np.diff(schedule.bounds(size, itemsize))
    empty = sum(not any(chunks[message.chunk] for message in messages) for messages in schedule.rounds)
    return _price(_busiest)(schedule, size, itemsize, alpha, beta) + alpha * empty


def _depth(world):
    return (world - 1).bit_length()


def _overtakes(latencies=None, shares=None, calls=2, depth=_depth, otherwise=0.0, whole=False, later=0, points=None):
    """``latencies`` and ``shares`` of the buffer, each of the tree and of the ring."""

    def overtakes(world, nbytes, seconds):
        cut = 0 if whole else int(np.argmin(np.diff(seconds))) + 1 + later  # where the time falls
        used = slice(cut, points and cut + points)
        model = collectives.fit(nbytes[used], seconds[used]).model
        tree, ring = latencies(world) if latencies else (2 * depth(world), 2 * (world - 1))
        bytes_tree, bytes_ring = shares(world) if shares else (2 * depth(world), 2 * (world - 1) / world)
        if ring <= tree:
            return nbytes[cut], otherwise
        return nbytes[cut], float((ring - tree) * model.alpha / calls / ((bytes_tree - bytes_ring) * model.beta))

    return overtakes


def _renumbered(build, order):
    """``build(nodes, per_node)``, with the ranks called as ``order(host)`` says."""

    def all_reduce(host):
        nodes = max(host) + 1
        return collectives.relabel(build(nodes, len(host) // nodes), ranks=order(host))

    return all_reduce


def _node_by_node(host):
    return np.argsort(host, kind="stable")


def _inverse(host):
    return np.argsort(_node_by_node(host))


def _as_they_come(host):
    return np.arange(len(host))


def _ring(nodes, per_node):
    return collectives.ring(nodes * per_node)


def half_a_ring(host):
    return collectives.relabel(collectives.reduce_scatter(len(host)), ranks=_node_by_node(host))


def _seconds(mega=1e6, port_bits=8, directions=2, shards=True):
    def sync_seconds(parameters, nodes, per_node, port, nvlink):
        nbytes = 2 * parameters / mega * 1e6
        inside = 2 * (per_node - 1) / per_node * nbytes / (nvlink * 1e9 / directions)
        between = 2 * (nodes - 1) / nodes * nbytes / (per_node if shards else 1) / (port * 1e9 / port_bits)
        return inside + between

    return sync_seconds


planned = _seconds(mega=2**20, port_bits=1, directions=1)

LIBRARY, ANY = "the library's schedules", "any schedule, any size"
LINE, OVERTAKES = "where a line holds", "where the ring overtakes"
UNITS = "seconds of a sync"
ONE_PORT, PORT_EACH = "one port for all ranks of a node", "a port for each rank"

MUTANTS = (
    Mutant(
        "06.1", "α for every message", _price(lambda s, r, n, a, b: a * len(n) + b * max(s.max(), r.max())), LIBRARY
    ),
    Mutant("06.1", "the longest message", _price(lambda s, r, n, a, b: a + b * max(n)), LIBRARY),
    Mutant("06.1", "half duplex", _price(lambda s, r, n, a, b: a + b * (s + r).max()), LIBRARY),
    Mutant("06.1", "all chunks alike", _price(_busiest, _even), ANY),
    Mutant("06.1", "only what is sent", _price(lambda s, r, n, a, b: a + b * s.max()), ANY),
    Mutant("06.1", "empty rounds cost a latency", empty_rounds_cost, ANY),
    Mutant("06.2", "one line for all", _overtakes(whole=True), LINE),
    Mutant("06.2", "the size after the next", _overtakes(later=1), LINE),
    Mutant("06.2", "the call's α for the link's", _overtakes(calls=1), OVERTAKES),
    Mutant("06.2", "a line through two points", _overtakes(points=2), OVERTAKES),
    Mutant("06.2", "only the way up", _overtakes(latencies=lambda n: (_depth(n), 2 * (n - 1))), OVERTAKES),
    Mutant("06.2", "log2 rounded down", _overtakes(depth=lambda n: n.bit_length() - 1), OVERTAKES),
    Mutant("06.2", "None for never slower", _overtakes(otherwise=None), OVERTAKES),
    Mutant("06.3", "as planned", planned, UNITS),
    Mutant("06.3", "bits as bytes", _seconds(port_bits=1), UNITS),
    Mutant("06.3", "both directions", _seconds(directions=1), UNITS),
    Mutant("06.3", "MiB", _seconds(mega=2**20), UNITS),
    Mutant("06.3", "the whole buffer through each port", _seconds(shards=False), UNITS),
    Mutant("06.4", "the ring as the ranks come", _renumbered(_ring, _as_they_come), ONE_PORT),
    Mutant("06.4", "nodes that are not there", _renumbered(collectives.hierarchical_ring, _as_they_come), ONE_PORT),
    Mutant("06.4", "the inverse order", _renumbered(collectives.hierarchical_ring, _inverse), ONE_PORT),
    Mutant("06.4", "no all-gather", half_a_ring, ONE_PORT),
    Mutant("06.4", "the ring, sorted", _renumbered(_ring, _node_by_node), PORT_EACH),
)

WORTHLESS = (
    ("06.1", lambda schedule, size, itemsize, alpha, beta: len(schedule.rounds) * (alpha + beta * size * itemsize)),
    ("06.2", lambda world, nbytes, seconds: (nbytes[0], 0.0 if world < 4 else 1.0)),
    ("06.3", planned),
    ("06.4", lambda host: collectives.ring(len(host))),
)
"""Answers that must not earn a single point."""
