"""Wrong answers to exercise 09, each with the mistake that people make."""

from itertools import zip_longest

from dpbook import collectives
from dpbook.classroom.tasks.judging import Mutant

# 09.1: a mean made of messages


def _ring(first, divide=lambda x, n: x / n, bounds=collectives.chunk_bounds):
    """A ring in which rank r sends before it receives where ``first(r, n)``."""

    def program(comm, x):
        n, r = comm.world_size, comm.rank
        cut = bounds(len(x), n)

        def turn(sent, received, op):
            def send():
                comm.send(x[cut[sent % n] : cut[sent % n + 1]], (r + 1) % n)

            def receive():
                comm.recv(x[cut[received % n] : cut[received % n + 1]], (r - 1) % n, op)

            for move in (send, receive) if first(r, n) else (receive, send):
                move()

        for s in range(n - 1):
            turn(r - s, r - s - 1, "sum")
        for s in range(n - 1):
            turn(r + 1 - s, r - s, "copy")
        x[:] = divide(x, n)

    return program


def even_first(r, n):
    return r % 2 == 0


def without_remainder(size, n):
    return [c * (size // n) for c in range(n + 1)]


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


SHARED = []


def shared_memory(comm, x):
    """Rank 0 notes N for everybody, in a list: ranks of one process see it, and processes do not."""
    if comm.rank == 0:
        SHARED.extend([comm.world_size] * comm.world_size)
    _ring(even_first, divide=lambda x, n: x / SHARED.pop())(comm, x)


# 09.2: the groups of a grid


def groups(rows, columns):
    """``rows`` and ``columns`` turn (world, cut) into lists of ranks."""
    return lambda world, cut: ([list(r) for r in rows(world, cut)], [list(c) for c in columns(world, cut)])


def neighbours(world, size):
    return [range(first, first + size) for first in range(0, world, size)]


def strided(world, size):
    return [range(first, world, size) for first in range(size)]


# 09.3: the rank at fault

FIELDS = ("call", "source", "shape", "dtype")


def diagnose(fields=FIELDS, agree=lambda plans: max(plans, key=plans.count), order=True, shorter=True, count=0, pair=2):
    def first_fault(logs):
        plans = [[tuple(call[f] for f in fields) for call in log] for log in logs]
        agreed = agree(plans)
        for rank, plan in enumerate(plans):
            if plan == agreed:
                continue
            k = next(i for i, (a, b) in enumerate(zip_longest(plan, agreed)) if a != b)
            if shorter and len(plan) < len(agreed):
                return rank, k + count, "skipped"
            if order and plan[k : k + pair] == agreed[k : k + 2][::-1][:pair]:
                return rank, k + count, "order"
            odd = [f for f, a, b in zip(fields, plan[k], agreed[k], strict=True) if a != b]
            return rank, k + count, odd[-1]
        return None

    return first_fault


def zero_is_right(plans):
    return plans[0]


def only_common_calls(logs):
    """Compares call by call, and so does not see that a log has ended."""
    for position, calls in enumerate(zip(*logs, strict=False)):
        plans = [tuple(call[f] for f in FIELDS) for call in calls]
        if len(set(plans)) > 1:
            rank, _, kind = diagnose()(logs)
            return rank, position, kind
    return None


def always(*fault):
    return lambda logs: fault


MUTANTS = (
    Mutant("09.1", "everyone sends first", _ring(lambda r, n: True), "any world, in one process"),
    Mutant("09.1", "partners in pairs", in_pairs, "any world, in one process"),
    Mutant("09.1", "a sum", _ring(even_first, divide=lambda x, n: x), "any world, in one process"),
    Mutant("09.1", "tail left out", _ring(even_first, bounds=without_remainder), "any world, in one process"),
    Mutant("09.1", "everything through rank 0", through_rank_zero, "any world, in one process"),
    Mutant("09.1", "sendrecv by a back door", behind_the_comm, "any world, in one process"),
    Mutant("09.1", "a list that ranks share", shared_memory, "three processes"),
    Mutant("09.2", "the two exchanged", groups(strided, neighbours), "rows and columns"),
    Mutant(
        "09.2", "copies and pieces exchanged", groups(lambda w, c: neighbours(w, w // c), strided), "rows and columns"
    ),
    Mutant("09.2", "neighbours twice", groups(neighbours, neighbours), "rows and columns"),
    Mutant("09.2", "one group short", groups(neighbours, lambda w, c: strided(w, c)[:-1]), "rows and columns"),
    Mutant("09.3", "rank 0 is right", diagnose(agree=zero_is_right), "which rank, which call"),
    Mutant("09.3", "lines must agree", diagnose(fields=(*FIELDS, "line")), "which rank, which call"),
    Mutant("09.3", "positions from 1", diagnose(count=1), "which rank, which call"),
    Mutant("09.3", "ends are not compared", only_common_calls, "which rank, which call"),
    Mutant("09.3", "source not compared", diagnose(fields=("call", "shape", "dtype")), "which rank, which call"),
    Mutant("09.3", "whatever is like the next call", diagnose(pair=1), "what is wrong"),
    Mutant("09.3", "order taken for a field", diagnose(order=False), "what is wrong"),
)

WORTHLESS = (
    ("09.1", lambda comm, x: None),
    ("09.1", _ring(lambda r, n: True)),
    ("09.2", groups(strided, neighbours)),
    ("09.3", always(0, 0, "skipped")),
    ("09.3", diagnose(agree=zero_is_right, count=1)),
)
"""Answers that must not earn a single point."""
