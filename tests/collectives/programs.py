"""Rank programs as a reader would write them, and random ones."""

from itertools import pairwise

from hypothesis import strategies as st

from dpbook.collectives import Round, Schedule, chunk_bounds


def ring_program(comm, x):
    """Ring all-reduce."""
    n, r = comm.world_size, comm.rank
    chunks = [x[a:b] for a, b in pairwise(chunk_bounds(len(x), n).tolist())]
    right, left = (r + 1) % n, (r - 1) % n
    if n == 1:
        return
    for s in range(n - 1):
        comm.sendrecv(chunks[(r - s) % n], right, chunks[(r - s - 1) % n], left, op="sum")
    for s in range(n - 1):
        comm.sendrecv(chunks[(r + 1 - s) % n], right, chunks[(r - s) % n], left)


def tree_program(comm, x):
    """Binomial tree: up with sums, down with copies."""
    n, r, step = comm.world_size, comm.rank, 1
    while step < n:
        if r % (2 * step) == step:
            comm.send(x, r - step)
        elif r % (2 * step) == 0 and r + step < n:
            comm.recv(x, r + step, op="sum")
        step *= 2
    while step > 1:
        step //= 2
        if r % (2 * step) == step:
            comm.recv(x, r - step)
        elif r % (2 * step) == 0 and r + step < n:
            comm.send(x, r + step)


def server_program(comm, x):
    """Parameter server on rank 0."""
    if comm.rank == 0:
        for worker in range(1, comm.world_size):
            comm.recv(x, worker, op="sum")
        for worker in range(1, comm.world_size):
            comm.send(x, worker)
    else:
        comm.send(x, 0)
        comm.recv(x, 0)


PROGRAMS = {"ring": ring_program, "tree": tree_program, "parameter_server": server_program}


@st.composite
def exchanges(draw, max_world=5, max_steps=5):
    """A world, a size, and steps in each of which a rank sends at most one slice and receives at most one.

    A step maps a sender to (receiver, begin, end, op).
    """
    world, size = draw(st.integers(2, max_world)), draw(st.integers(1, 4))
    steps = []
    for _ in range(draw(st.integers(0, max_steps))):
        receivers = draw(st.permutations(range(world)))
        step = {}
        for sender in range(world):
            if receivers[sender] != sender and draw(st.booleans()):
                begin, end = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
                step[sender] = (receivers[sender], begin, end, draw(st.sampled_from(["sum", "copy"])))
        steps.append(step)
    return world, size, steps


def as_program(steps):
    """The rank program that carries the steps out."""

    def program(comm, x):
        for step in steps:
            out = step.get(comm.rank)
            source, into = next(((s, m) for s, m in step.items() if m[0] == comm.rank), (None, None))
            if out and into:
                comm.sendrecv(x[out[1] : out[2]], out[0], x[into[1] : into[2]], source, op=into[3])
            elif out:
                comm.send(x[out[1] : out[2]], out[0])
            elif into:
                comm.recv(x[into[1] : into[2]], source, op=into[3])

    return program


def as_schedule(world, size, steps):
    """The schedule that carries the steps out: one round per step, one chunk per element."""
    rounds = [
        Round.from_messages(
            [
                (sender, dest, element, op == "sum")
                for sender, (dest, begin, end, op) in step.items()
                for element in range(begin, end)
            ]
        )
        for step in steps
    ]
    return Schedule(world, size, rounds)
