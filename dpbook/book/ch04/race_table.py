"""Which rate is best for which batch: a table of `Race`s as a picture."""

from collections.abc import Sequence

import numpy as np

from dpbook.book.ch04.sweep import Race
from dpbook.core import InvalidArgument, palette
from dpbook.figures import Plot
from dpbook.figures.card import VARIES, finish, in_style, new_figure


@in_style
def draw_races(races: Sequence[Race], title: str) -> Plot:
    """Draw the mean steps of each rate (columns) for each batch (rows); the darker, the nearer to the row's best.

    A dash stands for a rate at which some run did not reach the goal. Numbers beyond a row's best are of runs that
    nearly diverge, and vary between processors. Raises `InvalidArgument` unless all races have the same rates, and one
    that reached the goal.
    """
    if not races or any(not np.array_equal(race.rates, races[0].rates) for race in races):
        raise InvalidArgument("races", races, "one or more, all with the same rates")
    means = np.array([race.means for race in races])
    if not np.isfinite(means.min(axis=1)).all():
        raise InvalidArgument("races", races, "each with a rate whose runs all reach the goal")
    from matplotlib.colors import LinearSegmentedColormap

    figure, axes = new_figure(title)
    near = means.min(axis=1, keepdims=True) / means  # 1 at the best, 0 where it was given up
    colours = LinearSegmentedColormap.from_list("near", [palette.PAPER, palette.tint(palette.COMPLETE, 0.6)])
    axes.imshow(near**2, cmap=colours, vmin=0, vmax=1, aspect="auto", gid=VARIES)
    for (row, column), steps in np.ndenumerate(means):
        words, weight = f"{steps:.0f}" if np.isfinite(steps) else "–", "bold" if near[row, column] == 1 else "normal"
        gid = VARIES if column > races[row].best and np.isfinite(steps) else None
        axes.text(column, row, words, ha="center", va="center", weight=weight, color=palette.INK, gid=gid)
    axes.set_xticks(range(means.shape[1]), labels=[f"{rate:.2g}" for rate in races[0].rates])
    axes.set_yticks(range(len(races)), labels=[f"{race.batch}" for race in races])
    axes.set(xlabel="learning rate", ylabel="batch (examples)")
    axes.grid(visible=False)
    best = "; ".join(f"{race.batch}: {race.rates[race.best]:.2g}, {race.means[race.best]:.0f} steps" for race in races)
    return finish(figure, f"{title}. The best rate of each batch and the steps that it needs: {best}.")
