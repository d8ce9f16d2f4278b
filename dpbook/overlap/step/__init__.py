"""A training step simulated: layers, strategies, the streams on which they run."""

from dpbook.overlap.step.engine import Call, Engine, Operation
from dpbook.overlap.step.simulation import simulate_step
