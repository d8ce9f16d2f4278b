"""Pictures and viewers, in one palette: schedules as SVG, data plots as PNG, each with its words."""

from dpbook.figures.additions import draw_additions, play_additions
from dpbook.figures.animate import animate
from dpbook.figures.batches import against_batch, draw_accumulation, noise_scale_estimates, play_accumulation
from dpbook.figures.errors import distances, error_ladder
from dpbook.figures.explorer import Explorer, Knob
from dpbook.figures.feeds import draw_feeds, play_feeds
from dpbook.figures.loop import play_loop
from dpbook.figures.overview import draw_overview
from dpbook.figures.picture import Picture
from dpbook.figures.player import Viewer, play
from dpbook.figures.plot import Plot
from dpbook.figures.plots import digits_grid, drift_and_gap, loss_curve
from dpbook.figures.replay import demonstration
from dpbook.figures.schedule import draw_schedule
from dpbook.figures.traffic import draw_traffic

__all__ = [
    "Explorer",
    "Knob",
    "Picture",
    "Plot",
    "Viewer",
    "against_batch",
    "animate",
    "demonstration",
    "digits_grid",
    "distances",
    "draw_accumulation",
    "draw_additions",
    "draw_feeds",
    "draw_overview",
    "draw_schedule",
    "draw_traffic",
    "drift_and_gap",
    "error_ladder",
    "loss_curve",
    "noise_scale_estimates",
    "play",
    "play_accumulation",
    "play_additions",
    "play_feeds",
    "play_loop",
]
