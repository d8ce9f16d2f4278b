"""Rank programs as a reader would write them. Ranks load this file, so it asks for nothing of hypothesis."""

from itertools import pairwise

from dpbook.collectives import chunk_bounds


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
