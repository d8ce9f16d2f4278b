"""Pictures, plots, viewers and explorers in one palette, each as SVG with its alternative text.

Importing this package loads none of them: a module that draws is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports

if TYPE_CHECKING:
    from dpbook.figures.card.picture import Picture
    from dpbook.figures.card.viewer import EXPLORER_MIME, PLAYER_MIME, Explorer, Knob, Viewer
    from dpbook.figures.plots import (
        cost_curves,
        digits_grid,
        drift_and_gap,
        fitted_sweep,
        loss_curve,
        magnitude,
        run_loss,
        run_seconds,
        sweeps,
    )
    from dpbook.figures.progress_bar import progress
    from dpbook.figures.schedules.overview import draw_groups, draw_overview
    from dpbook.figures.schedules.states import demonstration
    from dpbook.figures.schedules.table import animate, draw_schedule, play
    from dpbook.figures.steps.buckets import cap_sweep, draw_plan, explore_buckets, play_step
    from dpbook.figures.steps.timelines import draw_memory, draw_ranks, draw_timelines, play_race

__getattr__ = lazy_exports(
    __name__, EXPLORER_MIME="card.viewer", PLAYER_MIME="card.viewer",
    Explorer="card.viewer", Knob="card.viewer", Picture="card.picture", Viewer="card.viewer",
    animate="schedules.table", cap_sweep="steps.buckets", cost_curves="plots", demonstration="schedules.states",
    digits_grid="plots", draw_groups="schedules.overview", draw_memory="steps.timelines",
    draw_overview="schedules.overview", draw_plan="steps.buckets", draw_ranks="steps.timelines",
    draw_schedule="schedules.table", draw_timelines="steps.timelines", drift_and_gap="plots",
    explore_buckets="steps.buckets", fitted_sweep="plots", loss_curve="plots",
    magnitude="plots", play="schedules.table", play_race="steps.timelines", play_step="steps.buckets",
    progress="progress_bar", run_loss="plots", run_seconds="plots", sweeps="plots",
)  # fmt: skip
