"""Chapter 13: The scaling wall."""

from dpbook.book.ch13.capacity import explore_memory, memory_bars, scaling_bars
from dpbook.book.ch13.published import PUBLISHED, Run, fixed, predicted_sweep
from dpbook.book.ch13.walls import PRESETS, explore_scaling, scaling_wall
