"""An all-reduce as data: build, verify, simulate, count, price."""

from dpbook.collectives.algebras.bit_agreement import Agreement, agreement, in_own_order
from dpbook.collectives.algebras.interpreter import Cells, interpret
from dpbook.collectives.algebras.simulation import BufferState, Simulation, frames, simulate
from dpbook.collectives.algebras.verification import Fault, Verified, find_fault, verify, verify_all_reduce
from dpbook.collectives.algorithms.catalogue import ALGORITHMS, Algorithm
from dpbook.collectives.algorithms.rings import (
    GlooBounds,
    all_gather,
    gloo_ring,
    hierarchical_ring,
    reduce_scatter,
    ring,
    ring_per_port,
)
from dpbook.collectives.algorithms.trees import (
    broadcast,
    halving_doubling,
    parameter_server,
    recursive_doubling,
    reduce,
    tree,
    two_phase,
)
from dpbook.collectives.pricing import closed_forms
from dpbook.collectives.pricing.alpha_beta import AlphaBeta, Fit, Slowest, crossover, fit
from dpbook.collectives.pricing.closed_forms import bandwidth_lower_bound, latency_lower_bound
from dpbook.collectives.pricing.schedule_cost import (
    Collective,
    Cost,
    Traffic,
    algbw,
    bus_factor,
    busbw,
    collective_of,
    cost,
    count,
)
from dpbook.collectives.pricing.topology import Link, Network, Topology
from dpbook.collectives.programs.comm import Comm, Program
from dpbook.collectives.programs.recording import record
from dpbook.collectives.programs.spmd import run
from dpbook.collectives.schedule.chunks import (
    Bounds,
    EvenSplit,
    FixedBounds,
    Holding,
    Placement,
    chunk_bounds,
    complete_everywhere,
    complete_on,
    partial,
)
from dpbook.collectives.schedule.rounds import LazyRounds, Message, Round
from dpbook.collectives.schedule.schedule import Schedule, beside, embed, from_json, relabel, to_json
