"""Schedules as data: rounds of messages, the chunks that they move, and the composition and storage of schedules."""

from dpbook.collectives.schedule.chunks import describe
from dpbook.collectives.schedule.rounds import BoolArray, IntArray
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
