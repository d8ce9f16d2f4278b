"""Chapter 13: The scaling wall."""

from dpbook.book.ch13.memory import explore_memory, memory_bars
from dpbook.book.ch13.published import (
    MegatronRun,
    curve_errors,
    draw_errors,
    fixed,
    fixed_on_two_points,
    megatron_runs,
    predicted_sweep,
    prediction_errors,
    scaling_curves,
)
from dpbook.book.ch13.walls import explore_scaling, scaling_bars, scaling_wall
