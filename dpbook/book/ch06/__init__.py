"""Chapter 06: The cost of a collective. Prices of schedules beside measured times.

Slow ports are real processes: bytes travel at full speed, and then both ends of a message occupy their ports for the
time of the slow link. Waiting uses no core, so a laptop has as many such links as processes. The random sweeps of
exercise 06.2 have scatter, and come from a library that switches its protocol.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import AlphaBeta, Comm, Link, Message, Program, Schedule, Topology, closed_forms, cost, relabel
from dpbook.core import InvalidArgument, check_int, check_type, palette
from dpbook.figures import Picture
from dpbook.figures.card import draw_lines, finish, in_style, new_figure
from dpbook.planning import ACCELERATORS, Cluster, all_reduce
from dpbook.ranks import Sweep

SIZES = 2 ** np.arange(10, 27)  # sizes in bytes, from 1 KiB to 64 MiB
SCATTER = 0.01  # largest relative error of a measured time


class RandomSweep(NamedTuple):
    """A random sweep of calls between two ranks, and its parameters."""

    nbytes: NDArray[np.int64]
    seconds: NDArray[np.float64]  # of a call of each size
    link: Link  # of one message, in the protocol for large buffers
    first: int  # smallest of ``nbytes`` at which that protocol is used


def draw(rng: np.random.Generator) -> RandomSweep:
    """Draw a sweep of a ring of two, which below ``first`` uses a link of lower latency and much lower bandwidth."""
    # The library switches at about three times the size for which the two protocols take equally long.
    position = int(rng.integers(5, 11))
    first, latency = int(SIZES[position]), float(rng.uniform(1e-5, 5e-5))
    large = Link(latency, float(first / rng.uniform(0.8, 0.9) / latency))
    small = Link(latency * float(rng.uniform(0.1, 0.2)), large.bandwidth / float(rng.uniform(6, 8)))
    below, above = (closed_forms.ring(2, link)(SIZES) for link in (small, large))
    seconds = np.where(first > SIZES, below, above) * rng.uniform(1 - SCATTER, 1 + SCATTER, len(SIZES))
    return RandomSweep(SIZES, seconds, large, first)


def sample(seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the bytes and the seconds of a random sweep; equal seeds give equal sweeps."""
    drawn = draw(np.random.default_rng(check_int("seed", seed, 0)))
    return drawn.nbytes, drawn.seconds


def over_slow_ports(schedule: Schedule, link: Link) -> Program:
    """Return a rank program that carries out ``schedule``, with a port of ``link`` for each rank.

    A rank may send one message and receive one in a round. Raises `InvalidArgument` for other schedules.
    """
    check_type("link", link, Link, "a Link, such as Link.gigabits(1, latency=5e-3)")
    for round_ in check_type("schedule", schedule, Schedule, "a Schedule").rounds:
        if any(len(np.unique(ends)) < len(round_) for ends in (round_.source, round_.dest)):
            raise InvalidArgument("schedule", schedule, "one in which a rank sends and receives one message per round")
    return partial(_carry_out, schedule, link)


def _carry_out(schedule: Schedule, link: Link, comm: Comm, x: NDArray[Any]) -> None:
    cut = schedule.bounds(len(x), x.itemsize)

    def view(message: Message) -> NDArray[Any]:
        return x[cut[message.chunk] : cut[message.chunk + 1]]

    for round_ in schedule.rounds:
        mine = [m for m in round_ if comm.rank in (m.source, m.dest) and len(view(m))]
        out = next((m for m in mine if m.source == comm.rank), None)
        into = next((m for m in mine if m.dest == comm.rank), None)
        if out and into:
            comm.sendrecv(view(out), out.dest, view(into), into.source, "sum" if into.reduce else "copy")
        elif out:
            comm.send(view(out), out.dest)
        elif into:
            comm.recv(view(into), into.source, "sum" if into.reduce else "copy")
        if mine:
            time.sleep(link.alpha + link.beta * max(view(m).nbytes for m in mine))


INSIDE, PORT = Link.gigabytes(450, latency=3e-6), Link.gigabits(400, latency=5e-6)
NBYTES = 64_000_000


def price_scattered(schedule: Schedule, host: Sequence[int], ports: int) -> float:
    """Return the seconds of a call on 64 MB, with rank r on node ``host[r]``; nodes have equal ``ports`` and ranks."""
    nodes = max(host) + 1
    place = np.argsort(np.argsort(host, kind="stable"))  # the rank's number if ranks were numbered node by node
    cluster = Topology(nodes, len(host) // nodes, INSIDE, PORT, ports)
    return cost(relabel(schedule, ranks=place.tolist()), NBYTES, cluster).seconds


@in_style
def against_measured(measured: Sweep, models: Mapping[str, AlphaBeta], title: str) -> Picture:
    """Plot, for up to four models by name, predicted over measured time at every size: 1 is right, 0.5 half of it."""
    ratios = {name: model(measured.nbytes) / measured.seconds for name, model in models.items()}
    figure, axes = new_figure(title)
    axes.axhline(1, color=palette.MUTED, linewidth=1)
    draw_lines(axes, ratios, measured.nbytes, marker="o", markersize=4)
    axes.set(xscale="log", xlabel="bytes of the buffer", ylabel="predicted / measured time", ylim=(0, 1.5))
    axes.set_xticks([1e6, 1e9], labels=["1 MB", "1 GB"])
    ranges = "; ".join(f"{name}: {ratio.min():.2f} to {ratio.max():.2f}" for name, ratio in ratios.items())
    return finish(figure, f"Predicted over measured time at {len(measured.nbytes)} sizes: {ranges}.")


ROUNDS = 8
"""Rounds in which constants are found; each leaves less than a tenth of the error of the one before."""


def fixed_on_two_points(sweep: Sweep, small: int = 2**20, large: int = 2**34) -> Cluster:
    """Return the four nodes of 8 B200, with the network's latency and the share of the wires fixed on two sizes.

    For the ``small`` one NCCL used trees: 8 latencies between four nodes. Inside a node the latency is the assumption
    of `LINKS`. Of 18 other sizes 14 are then within a tenth, and 10 to 14 with other pairs.
    """
    near, far = np.searchsorted(sweep.nbytes, [small, large])
    latency, share = 0.0, 1.0
    for _ in range(ROUNDS):
        pod = Cluster(ACCELERATORS["B200"], sweep.world, Link.gigabits(400, latency=latency), wires=share)
        predicted = predicted_sweep(pod, sweep)
        latency += float(sweep.seconds[near] - predicted[near]) / 8
        share *= float(predicted[far] / sweep.seconds[far])
    return pod


def predicted_sweep(cluster: Cluster, sweep: Sweep) -> NDArray[np.float64]:
    """Return the planner's seconds of an all-reduce of each size of the sweep, with the algorithm that NCCL used."""
    sizes = zip(sweep.algorithms, sweep.nbytes.tolist(), strict=True)
    return np.array([all_reduce(algorithm, cluster.topology)(nbytes) for algorithm, nbytes in sizes])
