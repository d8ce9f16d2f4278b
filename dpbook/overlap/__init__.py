"""When the bytes move: buckets, the simulated step, timelines, traces of real runs.

layers = layers_of(cnn(), forward=0.010)                    # seconds and gradients of each layer
cut = plan(tensors_of(layers), cap=25 * MIB)                # which gradients travel together
step = simulate_step(layers, cut, AlphaBeta(1e-4, 1e-9))    # a Timeline; .duration, .exposed()
best_cap(layers, AlphaBeta(1e-4, 1e-9)).best                # the cap of the shortest step
read_profiles(recorded_traces(), step=10)                   # a Timeline too, of a real run
"""

from dpbook.overlap.buckets.layout import Bucket, Plan
from dpbook.overlap.buckets.plans import CAP, FIRST_CAP, MIB, first_step_plan, flat_plan, per_tensor_plan, plan
from dpbook.overlap.buckets.tensors import ITEMSIZE, Tensor
from dpbook.overlap.sharding.choices import Sharding, Wires
from dpbook.overlap.sharding.course import Course
from dpbook.overlap.sharding.memory import CONTENTS, STATE, Content, Held, MemoryCurve
from dpbook.overlap.sharding.simulation import ShardedStep, simulate_sharded
from dpbook.overlap.sharding.units import ROOT, Sizes, Unit, equal_units, units_of
from dpbook.overlap.step.cap_sweep import CapSweep, best_cap
from dpbook.overlap.step.layers import Layer, equal_layers, layers_of, tensors_of
from dpbook.overlap.step.simulation import Price, simulate_step
from dpbook.overlap.step.strategies import STRATEGIES, Strategy, bucketed, hook, naive, naive_flat, single
from dpbook.overlap.timeline.json_format import from_json, to_json
from dpbook.overlap.timeline.measured import StepRecord, recorded_steps, recorded_traces
from dpbook.overlap.timeline.merging import merge, split_waits
from dpbook.overlap.timeline.spans import KINDS, Kind, Span, Timeline
from dpbook.overlap.timeline.trace_read import read_profile, read_profiles
from dpbook.overlap.timeline.trace_write import chrome_trace, write_trace
