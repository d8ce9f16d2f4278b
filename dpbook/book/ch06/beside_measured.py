"""Models beside a sweep that somebody has measured."""

from collections.abc import Mapping

from dpbook.collectives import AlphaBeta
from dpbook.core import palette
from dpbook.figures import Plot
from dpbook.figures.card import check_named, draw_lines, finish, in_style, new_figure
from dpbook.ranks import Sweep


@in_style
def against_measured(measured: Sweep, models: Mapping[str, AlphaBeta], title: str) -> Plot:
    """Plot, for up to four models by name, predicted over measured time at every size: 1 is right, 0.5 half of it.

    Raises `InvalidArgument`.
    """
    check_named("models", models, 4, AlphaBeta, "1 to 4 AlphaBeta by name")
    ratios = {name: model(measured.nbytes) / measured.seconds for name, model in models.items()}
    figure, axes = new_figure(title)
    axes.axhline(1, color=palette.MUTED, linewidth=1)
    draw_lines(axes, ratios, measured.nbytes, marker="o", markersize=4)
    axes.set(xscale="log", xlabel="bytes of the buffer", ylabel="predicted / measured time", ylim=(0, 1.5))
    axes.set_xticks([1e6, 1e9], labels=["1 MB", "1 GB"])
    axes.legend(loc="upper left", handlelength=3, ncols=2)
    told = "; ".join(f"{name}: {ratio.min():.2f} to {ratio.max():.2f}" for name, ratio in ratios.items())
    return finish(figure, f"{title}. Predicted over measured time at {len(measured.nbytes)} sizes: {told}.")
