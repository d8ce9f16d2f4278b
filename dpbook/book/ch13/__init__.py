"""Chapter 13: The scaling wall."""

from dpbook.book.ch13.capacity import explore_memory, explore_scaling, memory_bars, scaling_bars
