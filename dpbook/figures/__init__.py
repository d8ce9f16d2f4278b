"""Pictures and viewers, in one palette: schedules and timelines as SVG, data plots as PNG, each with its words."""

from dpbook.figures.card.drawn import DRAWN, unlike
from dpbook.figures.card.explorer import Explorer, Knob
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.player import Viewer
from dpbook.figures.card.plot import Plot
from dpbook.figures.costs import cost_curves, fitted_sweep, sweeps
from dpbook.figures.groups import draw_groups
from dpbook.figures.plots import digits_grid, drift_and_gap, loss_curve, magnitude, run_loss, run_seconds
from dpbook.figures.schedules.frames import demonstration
from dpbook.figures.schedules.overview import draw_overview
from dpbook.figures.schedules.schedule import animate, draw_schedule, play
from dpbook.figures.steps.buckets import cap_sweep, draw_plan
from dpbook.figures.steps.memory import draw_memory
from dpbook.figures.steps.step import explore_buckets, explore_savings, play_step
from dpbook.figures.steps.timelines import draw_ranks, draw_timelines
