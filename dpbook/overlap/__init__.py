"""Overlap of communication and computation: buckets, the simulated step, timelines, traces of real runs.

layers = layers_of(cnn(), forward=0.010)                    # seconds and gradients of each layer
cut = plan(tensors_of(layers), cap=25 * MIB)                # which gradients travel together
step = simulate_step(layers, cut, AlphaBeta(1e-4, 1e-9))    # a Timeline; .duration, .exposed()
best_cap(layers, AlphaBeta(1e-4, 1e-9)).best                # the cap of the shortest step
read_profiles(recorded_traces(), step=10)                   # a Timeline too, of a real run
"""

from dpbook.overlap.buckets import (
    CAP,
    FIRST_CAP,
    ITEMSIZE,
    MIB,
    Bucket,
    Plan,
    Tensor,
    first_step_plan,
    flat_plan,
    per_tensor_plan,
    plan,
)
from dpbook.overlap.engine import CollectiveCall, Engine, Operation
from dpbook.overlap.layers import (
    STRATEGIES,
    Layer,
    Price,
    Strategy,
    bucketed,
    equal_layers,
    hook,
    layers_of,
    naive,
    naive_flat,
    single,
    tensors_of,
)
from dpbook.overlap.sharded_program import TimedProgram
from dpbook.overlap.sharded_step import CONTENTS, STATE, Allocation, Content, MemoryCurve, ShardedStep, simulate_sharded
from dpbook.overlap.sharding import ROOT, Sharding, Sizes, Unit, Wires, equal_units, units_of
from dpbook.overlap.step_simulation import CapSweep, best_cap, simulate_step
from dpbook.overlap.timeline.spans import KINDS, Kind, Span, Timeline, merge, split_waits
from dpbook.overlap.timeline.trace import (
    StepRecord,
    chrome_trace,
    read_profile,
    read_profiles,
    recorded_steps,
    recorded_traces,
    write_trace,
)
