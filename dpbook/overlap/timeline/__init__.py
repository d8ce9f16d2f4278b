"""Timelines: spans of a simulated step, or of a profiler's trace."""

from dpbook.overlap.timeline.spans import Span, Timeline, difference, length, union
