"""Pictures of a training step: timelines, buckets, memory, and the time that overlap saves."""

from dpbook.figures.steps.buckets import position_curve
from dpbook.figures.steps.timelines import CONTENT_FILLS, MOST_TIMELINES, draw_memory_until, draw_until, from_zero
