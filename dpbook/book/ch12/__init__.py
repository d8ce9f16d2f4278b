"""Chapter 12: Trace and scale, and beside it 12b: A GPU's clock."""

from dpbook.book.ch12.timelines import on_sim, play_diagnosis, sim_timeline, time_lost, whereabouts
