"""Chapter 01: The four-phase loop."""

from dpbook.book.ch01.loop import play_loop
from dpbook.book.ch01.staleness import descend, draw_paths
