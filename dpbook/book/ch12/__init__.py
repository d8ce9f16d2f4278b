"""Chapter 12: Trace and scale."""

from dpbook.book.ch12.lost_time import time_lost
from dpbook.book.ch12.lost_time_player import play_diagnosis
