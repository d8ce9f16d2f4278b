"""Wrong answers to exercise 06, each with the mistake that people make."""

from dpbook import collectives
from tests.classroom.mutants.edits import edit

CHUNKS, BUSIEST, SECONDS = (
    "itemsize * np.diff(schedule.bounds(size, itemsize))",
    "max(sent.max(), received.max())",
    "alpha + beta * busiest",
)
BEST_CUT, FITTED = "min(range(2, len(nbytes) - 1), key=error)", "collectives.fit(nbytes[k:], seconds[k:])"
LATENCIES = "(ring - tree) * call.alpha / 2"
TWO_LEVELS, NODE_BY_NODE = "collectives.hierarchical_ring(nodes, len(host) // nodes)", 'np.argsort(host, kind="stable")'
ONE_RING, AS_THEY_COME = "collectives.ring(len(host))", "np.arange(len(host))"

LIBRARY, ANY = "the library's schedules", "any schedule, any size"
LINE, OVERTAKES = "where a line holds", "where the ring overtakes"
ONE_PORT, PORT_EACH = "one port for all ranks of a node", "a port for each rank"

MUTANTS = (
    edit("06.1", "α for every message", {SECONDS: "alpha * sum(1 for _ in messages) + beta * busiest"}, LIBRARY),
    edit(
        "06.1",
        "the longest message",
        {BUSIEST: "max((chunk_bytes[message.chunk] for message in messages), default=0)"},
        LIBRARY,
    ),
    edit("06.1", "half duplex", {BUSIEST: "(sent + received).max()"}, LIBRARY),
    edit("06.1", "all chunks alike", {CHUNKS: "np.full(schedule.n_chunks, size * itemsize / schedule.n_chunks)"}, ANY),
    edit(
        "06.1",
        "even chunks, whatever the schedule says",
        {CHUNKS: "itemsize * np.diff(collectives.chunk_bounds(size, schedule.n_chunks))"},
        ANY,
    ),
    edit("06.1", "only what is sent", {BUSIEST: "sent.max()"}, ANY),
    edit("06.1", "empty rounds cost a latency", {"if busiest > 0:": "if True:"}, ANY),
    edit("06.2", "one line for all", {BEST_CUT: "0"}, LINE),
    edit("06.2", "the size after the next", {BEST_CUT: f"{BEST_CUT} + 1"}, LINE),
    edit("06.2", "the call's α for the link's", {LATENCIES: "(ring - tree) * call.alpha"}, OVERTAKES),
    edit(
        "06.2",
        "a line through two points",
        {FITTED: "collectives.fit(nbytes[k : k + 2], seconds[k : k + 2])"},
        OVERTAKES,
    ),
    edit("06.2", "only the way up", {LATENCIES: "(ring - tree / 2) * call.alpha / 2"}, OVERTAKES),
    edit("06.2", "log2 rounded down", {"(world - 1).bit_length()": "(world.bit_length() - 1)"}, OVERTAKES),
    edit("06.2", "None for never slower", {"return nbytes[k], 0.0": "return nbytes[k], None"}, OVERTAKES),
    edit("06.3", "the ring as the ranks come", {TWO_LEVELS: ONE_RING, NODE_BY_NODE: AS_THEY_COME}, ONE_PORT),
    edit("06.3", "nodes that are not there", {NODE_BY_NODE: AS_THEY_COME}, ONE_PORT),
    edit("06.3", "the inverse order", {NODE_BY_NODE: f"np.argsort({NODE_BY_NODE})"}, ONE_PORT),
    edit("06.3", "no all-gather", {TWO_LEVELS: "collectives.reduce_scatter(len(host))"}, ONE_PORT),
    edit("06.3", "the ring, sorted", {TWO_LEVELS: ONE_RING}, PORT_EACH),
)

WORTHLESS = (
    ("06.1", lambda schedule, size, itemsize, alpha, beta: len(schedule.rounds) * (alpha + beta * size * itemsize)),
    ("06.2", lambda world, nbytes, seconds: (nbytes[0], 0.0 if world < 4 else 1.0)),
    ("06.3", lambda host: collectives.ring(len(host))),
)
"""Answers that must not earn a single point."""
