"""The data: rounds of messages, where each chunk is before and after them, and how schedules are joined and kept."""

from dpbook.collectives.schedule.placement import describe
from dpbook.collectives.schedule.rounds import BoolArray, IntArray
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
