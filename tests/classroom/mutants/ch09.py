"""Wrong answers to exercise 09, each with the mistake that people make."""

from dpbook import collectives
from tests.classroom.mutants.edits import Mutant, edit, edited, named


def through_rank_zero(comm, x):
    """The right mean, but all buffers go through rank 0."""
    for other in range(1, comm.world_size):
        if comm.rank == 0:
            comm.recv(x, other, "sum")
        elif comm.rank == other:
            comm.send(x, 0)
    x /= comm.world_size
    for other in range(1, comm.world_size):
        if comm.rank == 0:
            comm.send(x, other)
        elif comm.rank == other:
            comm.recv(x, 0)


def in_pairs(comm, x):
    """Exchanges with the partner at distance 1, 2, 4: there is none for everybody unless N is a power of two."""
    distance, arrived = 1, x.copy()
    while distance < comm.world_size:
        partner = comm.rank ^ distance
        for sends in (comm.rank < partner, comm.rank > partner):
            if sends:
                comm.send(x.copy(), partner)
            else:
                comm.recv(arrived, partner)
        x += arrived
        distance *= 2
    x /= comm.world_size


def behind_the_comm(comm, x):
    """The ring with sendrecv, which the object that `send` belongs to still had."""
    n, r, both = comm.world_size, comm.rank, comm.send.__self__.sendrecv
    cut = collectives.chunk_bounds(len(x), n)
    for step in range(2 * (n - 1)):
        sent, received = ((r - step + k) % n for k in (0, -1))
        op = "sum" if step < n - 1 else "copy"
        both(x[cut[sent] : cut[sent + 1]], (r + 1) % n, x[cut[received] : cut[received + 1]], (r - 1) % n, op)
    x /= n


CUT, MEAN = "collectives.chunk_bounds(len(x), n)", "x /= n"
NOTED_BY_RANK_0 = {
    "def all_reduce_mean": "SHARED = []\n\n\ndef all_reduce_mean",
    "cut = ": "SHARED.extend([n] * n if r == 0 else [])\n    cut = ",
    MEAN: "x /= SHARED.pop()",
}
"""Rank 0 notes N for everybody, in a list: ranks of one process see it, and processes do not."""
SENDS_FIRST = {"if r % 2:": "if False:", "if not r % 2:": "if True:"}
AGREED, FIELDS = "max(plans, key=plans.count)", '("call", "source", "shape", "dtype")'
FROM_ONE = {"return rank, k": "return rank, k + 1"}
SWAPPED = "plan[k : k + 2] == agreed[k : k + 2][::-1]"
ANY = "any world, in one process"
WHICH, WRONG = "which rank, which call", "what is wrong"

MUTANTS = (
    edit("09.1", "everyone sends first", SENDS_FIRST, ANY),
    Mutant("09.1", "partners in pairs", in_pairs, ANY),
    edit("09.1", "a sum", {MEAN: "pass"}, ANY),
    edit("09.1", "tail left out", {CUT: "[c * (len(x) // n) for c in range(n + 1)]"}, ANY),
    Mutant("09.1", "everything through rank 0", through_rank_zero, ANY),
    Mutant("09.1", "sendrecv by a back door", behind_the_comm, ANY),
    edit("09.1", "a list that ranks share", NOTED_BY_RANK_0, "three processes"),
    edit("09.2", "rank 0 is right", {AGREED: "plans[0]"}, WHICH),
    edit("09.2", "lines must agree", {FIELDS: FIELDS.replace(")", ', "line")')}, WHICH),
    edit("09.2", "positions from 1", FROM_ONE, WHICH),
    edit("09.2", "ends are not compared", {"for call in log]": "for call in log[: min(map(len, logs))]]"}, WHICH),
    edit("09.2", "source not compared", {FIELDS: '("call", "shape", "dtype")'}, WHICH),
    edit("09.2", "whatever is like the next call", {SWAPPED: "plan[k : k + 1] == agreed[k + 1 : k + 2]"}, WRONG),
    edit("09.2", "order taken for a field", {SWAPPED: "False"}, WRONG),
)

WORTHLESS = (
    ("09.1", lambda comm, x: None),
    *named(MUTANTS, "09.1", "everyone sends first"),
    ("09.2", lambda logs: (0, 0, "skipped")),
    ("09.2", edited("09.2", {AGREED: "plans[0]", **FROM_ONE})),
)
"""Answers that must not earn a single point."""
