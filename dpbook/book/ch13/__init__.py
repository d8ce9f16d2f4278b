"""Chapter 13: The scaling wall."""

from dpbook.book.ch13.clusters import PRESETS, PUBLISHED, PublishedRun, explore_scaling, fixed, predicted_sweep
from dpbook.book.ch13.curves import curve_errors, scaling_curves
from dpbook.book.ch13.memory import explore_memory, memory_bars
from dpbook.book.ch13.walls import scaling_bars, scaling_wall
