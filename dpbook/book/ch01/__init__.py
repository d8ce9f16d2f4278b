"""Chapter 01: The four-phase loop, drawn phase by phase on the smallest model, and descent with stale gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook import collectives, replicas
from dpbook.core import InvalidArgument, check_int, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Card, box, draw_lines, finish, in_style, new_figure, rect, text

LEFT, TOP = 190, 96
COLUMN, ROW, GAP = 176, 56, 14
ROWS = (
    ("replica", "all replicas are equal", palette.MUTED),
    ("1 shard", "each rank takes its own part of the batch", palette.MUTED),
    ("2 local gradients", "each rank: the gradient of its part, at its own w", palette.COMPUTATION),
    ("3 average", "all ranks exchange, and each has the average", palette.COMMUNICATION),
    ("4 identical update", "each rank changes its own w by the average", palette.COMPLETE),
)
"""Rows of the picture: the state before a step and after each of its phases. Columns are ranks."""

StepTexts = tuple[list[str], ...]  # for each of `ROWS`, a text per rank


def play_loop(x: ArrayLike, y: ArrayLike, world: int, lr: float, steps: int) -> Viewer:
    """Step through data-parallel training of the model w·x, phase by phase, from w = 0.

    ``x`` and ``y`` are 1-D, of one length that ``world`` divides; every step uses all examples.
    """
    check_int("world", world, 1, 4)
    check_int("steps", steps, 1, 99)
    column = np.asarray(x, dtype=float).reshape(-1, 1)
    if np.ndim(x) != 1 or np.shape(y) != np.shape(x) or len(column) > 16:
        raise InvalidArgument("x and y", (np.shape(x), np.shape(y)), "1-D, of one length up to 16")
    history = list(_train(column, np.asarray(y, dtype=float).reshape(-1, 1), world, lr, steps))
    return Viewer(lambda phase: _draw(history, phase), 4 * steps, "phase")


def _train(x: NDArray[Any], y: NDArray[Any], world: int, lr: float, steps: int) -> list[StepTexts]:
    w = np.zeros((world, 1))
    history = []
    for _ in range(steps):
        before = [f"w = {own:.4g}" for own in w[:, 0]]
        shards = replicas.shard(x, y, world)
        local = np.array([np.mean(2 * (own * xs - ys) * xs, axis=0) for own, (xs, ys) in zip(w, shards, strict=True)])
        averaged = replicas.average(local, collectives.ring(world))
        w = w - lr * averaged
        numbers = ["x = " + ", ".join(f"{value:g}" for value in xs[:, 0]) for xs, _ in shards]
        gradients = ([f"{g:.4g}" for g in array[:, 0]] for array in (local, averaged))
        history.append((before, numbers, *gradients, [f"w = {own:.4g}" for own in w[:, 0]]))
    return history


def _draw(history: list[StepTexts], phase: int) -> Picture:
    """Draw the state after ``phase`` phases, counted over all steps."""
    number, last_row = ((phase - 1) // 4, (phase - 1) % 4 + 1) if phase else (0, 0)
    step, world = history[number], len(history[number][0])
    title = f"Step {number + 1} of {len(history)}: {ROWS[last_row][1]}"
    width = max(560, LEFT + world * (COLUMN + GAP) + MARGIN)
    card = Card(width, title)
    card.add(*(text(_x(r) + COLUMN / 2, TOP - 14, f"rank {r}", 13, anchor="middle", bold=True) for r in range(world)))
    for row, cells in enumerate(step):
        card.add(*_row(row, cells, shown=row <= last_row, now=row == last_row))
    if last_row >= 3:  # a bar through all ranks between phases 2 and 3, the only place where they communicate
        y, wide = TOP + 3 * (ROW + GAP) - GAP / 2, world * (COLUMN + GAP) - GAP
        card.add(rect(_x(0), y - 2.5, wide, 5, rx=2.5, fill=palette.COMMUNICATION))
    ranks = [f"rank {r}: " + ", ".join(row[r] for row in step[: last_row + 1]) for r in range(world)]
    return card.picture(TOP + len(ROWS) * (ROW + GAP) + MARGIN, "; ".join(ranks) + ".")


def _row(row: int, cells: list[str], *, shown: bool, now: bool) -> list[str]:
    (name, _, colour), y = ROWS[row], TOP + row * (ROW + GAP)
    parts = [text(MARGIN, y + ROW / 2 + 5, name, 14, bold=now, fill=palette.INK if shown else palette.MUTED)]
    for rank, content in enumerate(cells):
        x = _x(rank)
        parts.append(box(x, y, COLUMN, ROW, colour if shown else None, 0.18, now))
        if shown:
            place = x + COLUMN / 2, y + ROW / 2 + 6
            parts.append(text(*place, content, 16, anchor="middle", mono=True, room=COLUMN - 12))
    return parts


def _x(rank: int) -> int:
    return LEFT + rank * (COLUMN + GAP)


def descend(rate: float, delay: int, steps: int) -> NDArray[np.float64]:
    """Return the parameter w (steps,) after each step of gradient descent on the parabola λ/2·w², from w = 1 on.

    A step uses the gradient of the parameters ``delay`` updates earlier, w ← w − rate · w_old, and in the first steps
    that of the start; ``rate`` is the learning rate times the curvature λ. |w| shrinks for every rate below
    `replicas.inexact.largest_stable_rate` of the delay, and grows above it.
    """
    w = [1.0] * (delay + 1)
    for _ in range(steps):
        w.append(w[-1] - rate * w[-1 - delay])
    return np.array(w[delay + 1 :])


@in_style
def draw_paths(paths: Mapping[str, NDArray[Any]], title: str) -> Picture:
    """Plot one to four named paths from `descend`, whose minimum is at 0. Raises `InvalidArgument`."""
    figure, axes = new_figure(title)
    draw_lines(axes, paths)
    axes.set(xlabel="step", ylabel="parameter w; the minimum is at 0")
    ends = "; ".join(f"{name}: {path[-1]:.2g}, {abs(path).max():.2g} at most" for name, path in paths.items())
    return finish(figure, f"w at the end, and the largest |w|: {ends}.")
