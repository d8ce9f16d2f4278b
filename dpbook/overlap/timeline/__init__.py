"""Timelines: spans of a simulated step, or of a profiler's trace."""

from dpbook.overlap.timeline.intervals import difference, length, union
from dpbook.overlap.timeline.spans import Span, Timeline
