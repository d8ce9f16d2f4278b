"""Pictures and viewers, in one palette: schedules and timelines as SVG, data plots as PNG, each with its words."""

from dpbook.figures.additions import draw_additions, play_additions
from dpbook.figures.animate import animate
from dpbook.figures.batches import against_batch, draw_accumulation, noise_scale_estimates, play_accumulation
from dpbook.figures.buckets import cap_sweep, draw_plan
from dpbook.figures.capacity import explore_memory, explore_scaling, memory_bars, scaling_bars
from dpbook.figures.costs import cost_curves, fitted_sweep, sweeps
from dpbook.figures.diagnosis import play_diagnosis
from dpbook.figures.errors import distances, error_ladder
from dpbook.figures.explorer import Explorer, Knob
from dpbook.figures.feeds import draw_feeds, play_feeds
from dpbook.figures.groups import draw_groups
from dpbook.figures.loop import play_loop
from dpbook.figures.overview import draw_overview
from dpbook.figures.picture import Picture
from dpbook.figures.player import Viewer, play
from dpbook.figures.plot import Plot
from dpbook.figures.plots import digits_grid, drift_and_gap, loss_curve
from dpbook.figures.predictions import step_bars, step_prediction
from dpbook.figures.ranks import draw_ranks
from dpbook.figures.replay import demonstration
from dpbook.figures.runs import run_loss, run_seconds
from dpbook.figures.schedule import draw_schedule
from dpbook.figures.step import explore_buckets, explore_savings, play_step
from dpbook.figures.timeline import draw_timelines
from dpbook.figures.traffic import draw_traffic
from dpbook.figures.wire import explore_wire

__all__ = [
    "Explorer",
    "Knob",
    "Picture",
    "Plot",
    "Viewer",
    "against_batch",
    "animate",
    "cap_sweep",
    "cost_curves",
    "demonstration",
    "digits_grid",
    "distances",
    "draw_accumulation",
    "draw_additions",
    "draw_feeds",
    "draw_groups",
    "draw_overview",
    "draw_plan",
    "draw_ranks",
    "draw_schedule",
    "draw_timelines",
    "draw_traffic",
    "drift_and_gap",
    "error_ladder",
    "explore_buckets",
    "explore_memory",
    "explore_savings",
    "explore_scaling",
    "explore_wire",
    "fitted_sweep",
    "loss_curve",
    "memory_bars",
    "noise_scale_estimates",
    "play",
    "play_accumulation",
    "play_additions",
    "play_diagnosis",
    "play_feeds",
    "play_loop",
    "play_step",
    "run_loss",
    "run_seconds",
    "scaling_bars",
    "step_bars",
    "step_prediction",
    "sweeps",
]
