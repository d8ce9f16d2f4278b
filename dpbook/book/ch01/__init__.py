"""Chapter 01: The four-phase loop."""

from dpbook.book.ch01.loop import descend, draw_paths, play_loop
