"""Chapter 13: The scaling wall."""

from dpbook.book.ch13.capacity import memory_bars
from dpbook.book.ch13.clusters import PRESETS, PUBLISHED, Run, explore_scaling, fixed, predicted_sweep
from dpbook.book.ch13.efficiency import scaling_bars
from dpbook.book.ch13.memory import explore_memory
from dpbook.book.ch13.walls import scaling_wall
