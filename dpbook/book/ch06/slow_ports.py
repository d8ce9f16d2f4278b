"""A schedule between real processes whose ports are slow: algorithms compared where a wire is what one waits for.

The bytes travel as fast as they can; then both ends of a message keep their port for as long as a link would have been
busy with it. Waiting costs no core, so a laptop has as many such links as it has processes.
"""

import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Comm, Link, Message, Program, Schedule
from dpbook.core import InvalidArgument, check_type


def over_slow_ports(schedule: Schedule, link: Link) -> Program:
    """A rank program that carries out ``schedule``, with a port of ``link`` for each rank.

    A rank may send one message and receive one in a round. Raises `InvalidArgument`.
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
