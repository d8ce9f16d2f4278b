"""Pictures and viewers, in one palette: schedules and timelines as SVG, data plots as PNG, each with its words.

Importing this loads none of them: what draws is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports

if TYPE_CHECKING:
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

__getattr__ = lazy_exports(
    __name__, DRAWN="card.drawn", Explorer="card.explorer", Knob="card.explorer", Picture="card.picture",
    Plot="card.plot", Viewer="card.player", animate="schedules.schedule", cap_sweep="steps.buckets",
    cost_curves="costs", demonstration="schedules.frames", digits_grid="plots", draw_groups="groups",
    draw_memory="steps.memory", draw_overview="schedules.overview", draw_plan="steps.buckets",
    draw_ranks="steps.timelines", draw_schedule="schedules.schedule", draw_timelines="steps.timelines",
    drift_and_gap="plots", explore_buckets="steps.step", explore_savings="steps.step", fitted_sweep="costs",
    loss_curve="plots", magnitude="plots", play="schedules.schedule", play_step="steps.step", run_loss="plots",
    run_seconds="plots", sweeps="costs", unlike="card.drawn",
)  # fmt: skip
