"""An all-reduce as data: build, verify, simulate, count, price."""

from dpbook.collectives.algebras.bit_agreement import Agreement, agreement, in_own_order
from dpbook.collectives.algebras.explanation import Fault
from dpbook.collectives.algebras.interpreter import Cells, interpret
from dpbook.collectives.algebras.simulation import Frame, Simulation, frames, simulate
from dpbook.collectives.algebras.verification import Verified, find_fault, verify, verify_all_reduce
from dpbook.collectives.algorithms.catalogue import ALGORITHMS, Algorithm
from dpbook.collectives.algorithms.doubling import halving_doubling, recursive_doubling
from dpbook.collectives.algorithms.gloo import GlooBounds, gloo_ring
from dpbook.collectives.algorithms.nodes import hierarchical_ring, ring_per_port
from dpbook.collectives.algorithms.one_root import parameter_server
from dpbook.collectives.algorithms.rings import all_gather, reduce_scatter, ring
from dpbook.collectives.algorithms.trees import broadcast, reduce, tree
from dpbook.collectives.pricing import closed_forms
from dpbook.collectives.pricing.alpha_beta import AlphaBeta, Slowest, crossover
from dpbook.collectives.pricing.bandwidth import Collective, algbw, bus_factor, busbw, collective_of
from dpbook.collectives.pricing.counting import Traffic, count
from dpbook.collectives.pricing.fitting import Fit, fit
from dpbook.collectives.pricing.lower_bounds import bandwidth_lower_bound, latency_lower_bound
from dpbook.collectives.pricing.schedule_price import Cost, cost
from dpbook.collectives.pricing.topology import Link, Network, Topology
from dpbook.collectives.programs.comm import Comm, Program
from dpbook.collectives.programs.recording import record
from dpbook.collectives.programs.spmd import run
from dpbook.collectives.schedule.bounds import Bounds, EvenSplit, FixedBounds, chunk_bounds
from dpbook.collectives.schedule.composition import beside, embed, relabel
from dpbook.collectives.schedule.json_format import from_json, to_json
from dpbook.collectives.schedule.placement import Holding, Placement, complete_everywhere, complete_on, partial
from dpbook.collectives.schedule.rounds import LazyRounds, Message, Round
from dpbook.collectives.schedule.schedule import Schedule
