"""Chapter 12: Trace and scale, and beside it 12b: A GPU's clock."""

from dpbook.book.ch12.lost_time import play_diagnosis, time_lost
from dpbook.book.ch12.sim_runs import on_sim, sim_timeline, whereabouts
