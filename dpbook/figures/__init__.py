"""Pictures and viewers, in one palette: schedules as SVG, data plots as PNG, each with its words."""

from dpbook.figures.animate import animate
from dpbook.figures.loop import play_loop
from dpbook.figures.overview import draw_overview
from dpbook.figures.picture import Picture
from dpbook.figures.player import Viewer, play
from dpbook.figures.plots import Plot, digits_grid, drift_and_gap, loss_curve
from dpbook.figures.replay import demonstration
from dpbook.figures.schedule import draw_schedule
from dpbook.figures.traffic import draw_traffic

__all__ = [
    "Picture",
    "Plot",
    "Viewer",
    "animate",
    "demonstration",
    "digits_grid",
    "draw_overview",
    "draw_schedule",
    "draw_traffic",
    "drift_and_gap",
    "loss_curve",
    "play",
    "play_loop",
]
