"""An all-reduce as data: build, verify, simulate, count."""

from dpbook.collectives.algorithms import (
    ALGORITHMS,
    all_gather,
    broadcast,
    parameter_server,
    reduce,
    reduce_scatter,
    ring,
    tree,
)
from dpbook.collectives.bounds import Bounds, EvenSplit, FixedBounds, chunk_bounds
from dpbook.collectives.comm import Comm, Program
from dpbook.collectives.compose import beside, embed, relabel
from dpbook.collectives.cost import Traffic, bandwidth_lower_bound, count
from dpbook.collectives.explain import Fault
from dpbook.collectives.interpret import Cells, interpret
from dpbook.collectives.placement import Holding, Placement, complete_everywhere, complete_on, partial
from dpbook.collectives.record import record
from dpbook.collectives.rounds import LazyRounds, Message, Round
from dpbook.collectives.schedule import Schedule
from dpbook.collectives.serial import from_json, to_json
from dpbook.collectives.simulate import Frame, Simulation, frames, simulate
from dpbook.collectives.spmd import run
from dpbook.collectives.verify import Verified, find_fault, verify

__all__ = [
    "ALGORITHMS",
    "Bounds",
    "Cells",
    "Comm",
    "EvenSplit",
    "Fault",
    "FixedBounds",
    "Frame",
    "Holding",
    "LazyRounds",
    "Message",
    "Placement",
    "Program",
    "Round",
    "Schedule",
    "Simulation",
    "Traffic",
    "Verified",
    "all_gather",
    "bandwidth_lower_bound",
    "beside",
    "broadcast",
    "chunk_bounds",
    "complete_everywhere",
    "complete_on",
    "count",
    "embed",
    "find_fault",
    "frames",
    "from_json",
    "interpret",
    "parameter_server",
    "partial",
    "record",
    "reduce",
    "reduce_scatter",
    "relabel",
    "ring",
    "run",
    "simulate",
    "to_json",
    "tree",
    "verify",
]
