"""Pictures of a training step: timelines, buckets, what overlap saves."""

from dpbook.figures.steps.memory import CONTENT_FILLS, draw_memory_until
from dpbook.figures.steps.timelines import MOST_TIMELINES, check_timelines, draw_until, from_zero, until
