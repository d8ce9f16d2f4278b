"""When the bytes move: buckets, the simulated step, timelines, traces of real runs.

layers = layers_of(cnn(), forward=0.010)                    # seconds and gradients of each layer
cut = plan(tensors_of(layers), cap=25 * MIB)                # which gradients travel together
step = simulate_step(layers, cut, AlphaBeta(1e-4, 1e-9))    # a Timeline; .duration, .exposed()
best_cap(layers, AlphaBeta(1e-4, 1e-9)).best                # the cap of the shortest step
read_profiles(recorded_traces(), step=10)                   # a Timeline too, of a real run
"""

from dpbook.overlap.buckets import CAP, FIRST_CAP, MIB, first_step_plan, flat_plan, per_tensor_plan, plan
from dpbook.overlap.layers import Layer, equal_layers, layers_of, tensors_of
from dpbook.overlap.layout import Bucket, Plan
from dpbook.overlap.measured import StepRecord, recorded_steps
from dpbook.overlap.merge import merge, split_waits
from dpbook.overlap.recorded import recorded_traces
from dpbook.overlap.serial import from_json, to_json
from dpbook.overlap.shapes import cnn, gpt, mlp
from dpbook.overlap.step import Price, simulate_step
from dpbook.overlap.strategies import STRATEGIES, Strategy, bucketed, hook, naive, naive_flat, single
from dpbook.overlap.sweep import CapSweep, best_cap
from dpbook.overlap.tensors import ITEMSIZE, Tensor
from dpbook.overlap.timeline import KINDS, Kind, Span, Timeline
from dpbook.overlap.tokens import tokens_to_hide
from dpbook.overlap.trace_read import read_profile, read_profiles
from dpbook.overlap.trace_write import chrome_trace, write_trace

__all__ = [
    "CAP",
    "FIRST_CAP",
    "ITEMSIZE",
    "KINDS",
    "MIB",
    "STRATEGIES",
    "Bucket",
    "CapSweep",
    "Kind",
    "Layer",
    "Plan",
    "Price",
    "Span",
    "StepRecord",
    "Strategy",
    "Tensor",
    "Timeline",
    "best_cap",
    "bucketed",
    "chrome_trace",
    "cnn",
    "equal_layers",
    "first_step_plan",
    "flat_plan",
    "from_json",
    "gpt",
    "hook",
    "layers_of",
    "merge",
    "mlp",
    "naive",
    "naive_flat",
    "per_tensor_plan",
    "plan",
    "read_profile",
    "read_profiles",
    "recorded_steps",
    "recorded_traces",
    "simulate_step",
    "single",
    "split_waits",
    "tensors_of",
    "to_json",
    "tokens_to_hide",
    "write_trace",
]
