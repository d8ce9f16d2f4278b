"""Chapter 12: Trace and scale."""

from dpbook.book.ch12.lost_time import losses
from dpbook.book.ch12.lost_time_player import play_diagnosis
