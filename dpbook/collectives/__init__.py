"""An all-reduce as data: build, verify, simulate, count, price."""

from dpbook.collectives import closed_forms
from dpbook.collectives.algorithms import (
    all_gather,
    broadcast,
    parameter_server,
    reduce,
    reduce_scatter,
    ring,
    tree,
)
from dpbook.collectives.alpha_beta import AlphaBeta, Slowest, crossover
from dpbook.collectives.bandwidth import Collective, algbw, bus_factor, busbw, collective_of
from dpbook.collectives.bounds import Bounds, EvenSplit, FixedBounds, chunk_bounds
from dpbook.collectives.catalogue import ALGORITHMS
from dpbook.collectives.comm import Comm, Program
from dpbook.collectives.compose import beside, embed, relabel
from dpbook.collectives.doubling import halving_doubling, recursive_doubling
from dpbook.collectives.explain import Fault
from dpbook.collectives.fit import Fit, fit
from dpbook.collectives.gloo import GlooBounds, gloo_ring
from dpbook.collectives.interpret import Cells, interpret
from dpbook.collectives.lower_bounds import bandwidth_lower_bound, latency_lower_bound
from dpbook.collectives.nodes import hierarchical_ring, ring_per_port
from dpbook.collectives.placement import Holding, Placement, complete_everywhere, complete_on, partial
from dpbook.collectives.price import Cost, cost
from dpbook.collectives.record import record
from dpbook.collectives.rounds import LazyRounds, Message, Round
from dpbook.collectives.schedule import Schedule
from dpbook.collectives.serial import from_json, to_json
from dpbook.collectives.simulate import Frame, Simulation, frames, simulate
from dpbook.collectives.spmd import run
from dpbook.collectives.topology import Link, Network, Topology
from dpbook.collectives.traffic import PortTraffic, Traffic, count, count_ports
from dpbook.collectives.verify import Verified, find_fault, verify

__all__ = [
    "ALGORITHMS",
    "AlphaBeta",
    "Bounds",
    "Cells",
    "Collective",
    "Comm",
    "Cost",
    "EvenSplit",
    "Fault",
    "Fit",
    "FixedBounds",
    "Frame",
    "GlooBounds",
    "Holding",
    "LazyRounds",
    "Link",
    "Message",
    "Network",
    "Placement",
    "PortTraffic",
    "Program",
    "Round",
    "Schedule",
    "Simulation",
    "Slowest",
    "Topology",
    "Traffic",
    "Verified",
    "algbw",
    "all_gather",
    "bandwidth_lower_bound",
    "beside",
    "broadcast",
    "bus_factor",
    "busbw",
    "chunk_bounds",
    "closed_forms",
    "collective_of",
    "complete_everywhere",
    "complete_on",
    "cost",
    "count",
    "count_ports",
    "crossover",
    "embed",
    "find_fault",
    "fit",
    "frames",
    "from_json",
    "gloo_ring",
    "halving_doubling",
    "hierarchical_ring",
    "interpret",
    "latency_lower_bound",
    "parameter_server",
    "partial",
    "record",
    "recursive_doubling",
    "reduce",
    "reduce_scatter",
    "relabel",
    "ring",
    "ring_per_port",
    "run",
    "simulate",
    "to_json",
    "tree",
    "verify",
]
