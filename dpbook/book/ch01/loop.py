"""The four-phase loop on the smallest model there is, drawn phase by phase: ranks are columns, phases are rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook import collectives, replicas
from dpbook.core import InvalidArgument, check_int
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import COMMUNICATION, COMPLETE, COMPUTATION, INK, MUTED, PANEL, document, element, text, tint

MARGIN, LEFT, TOP = 20, 190, 96
COLUMN, ROW, GAP = 176, 56, 14
PHASES = (
    ("1 shard", "each rank takes its own part of the batch", MUTED),
    ("2 local gradients", "each rank: the gradient of its part, at its own w", COMPUTATION),
    ("3 average", "all ranks exchange, and each has the average", COMMUNICATION),
    ("4 identical update", "each rank changes its own w by the average", COMPLETE),
)


@dataclass(frozen=True)
class Step:
    """One step of the loop: a line of text per phase and rank, and w before it."""

    before: list[str]
    cells: tuple[list[str], ...]


def play_loop(x: ArrayLike, y: ArrayLike, world: int, lr: float, steps: int) -> Viewer:
    """Step through data-parallel training of the model w·x, phase by phase, from w = 0.

    ``x`` and ``y`` are 1-D, of one length that ``world`` divides; every step uses all examples. The numbers come from
    the functions that `replicas.train` is made of. Raises `InvalidArgument`.
    """
    check_int("world", world, 1, 4)
    check_int("steps", steps, 1, 99)
    column = np.asarray(x, dtype=float).reshape(-1, 1)
    if np.ndim(x) != 1 or np.shape(y) != np.shape(x) or len(column) > 16:
        raise InvalidArgument("x and y", (np.shape(x), np.shape(y)), "1-D, of one length up to 16")
    history = list(_train(column, np.asarray(y, dtype=float).reshape(-1, 1), world, lr, steps))
    return Viewer(lambda phase: _draw(history, phase), 4 * steps, "phase")


class _Line(replicas.Linear):
    """The model w·x: a linear model whose bias stays 0, so that one number is all there is to see."""

    def gradient(self, params: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        gradient = super().gradient(params, x, y)
        self.views(gradient)["b"][:] = 0
        return gradient


def _train(x: NDArray[Any], y: NDArray[Any], world: int, lr: float, steps: int) -> list[Step]:
    model = _Line(1)
    params = np.zeros((world, model.size))
    optimizers = [replicas.SGD(lr) for _ in range(world)]
    history = []
    for _ in range(steps):
        before = [f"w = {w:.4g}" for w in params[:, 0]]
        shards = replicas.shard(x, y, world)
        local = replicas.local_gradients(model, params, shards)
        averaged = replicas.average(local, collectives.ring(world))
        params = replicas.update(params, averaged, optimizers)
        cells = (
            ["x = " + ", ".join(f"{value:g}" for value in own[:, 0]) for own, _ in shards],
            [f"{g:.4g}" for g in local[:, 0]],
            [f"{g:.4g}" for g in averaged[:, 0]],
            [f"w = {w:.4g}" for w in params[:, 0]],
        )
        history.append(Step(before, cells))
    return history


def _draw(history: list[Step], phase: int) -> Picture:
    """The state after ``phase`` phases, counted over all steps."""
    number, done = (phase - 1) // 4, (phase - 1) % 4 + 1
    if phase == 0:
        number, done = 0, 0
    step, world = history[number], len(history[number].before)
    title = f"Step {number + 1} of {len(history)}: " + (PHASES[done - 1][1] if done else "all replicas are equal")
    width = max(560, LEFT + world * (COLUMN + GAP) + MARGIN)
    height = TOP + 5 * (ROW + GAP) + MARGIN
    body = [text(MARGIN, 34, title, 17, bold=True, room=width - 2 * MARGIN)]
    body += [text(_x(r) + COLUMN / 2, TOP - 14, f"rank {r}", 13, anchor="middle", bold=True) for r in range(world)]
    body += _row(0, "replica", MUTED, step.before, shown=True, now=done == 0)
    for row, ((name, _, colour), cells) in enumerate(zip(PHASES, step.cells, strict=True), start=1):
        body += _row(row, name, colour, cells, shown=row <= done, now=row == done)
    if done >= 3:
        body.append(_exchange(world))
    told = [f"rank {r}: {step.before[r]}" + "".join(f", {row[r]}" for row in step.cells[:done]) for r in range(world)]
    alt = f"{title}. " + "; ".join(told) + "."
    return Picture(document(width, height, alt, "", body, data_phase=phase), alt)


def _row(row: int, name: str, colour: str, cells: list[str], *, shown: bool, now: bool) -> list[str]:
    y = TOP + row * (ROW + GAP)
    parts = [text(MARGIN, y + ROW / 2 + 5, name, 14, bold=now, fill=INK if shown else MUTED)]
    for rank, content in enumerate(cells):
        box = {"x": _x(rank), "y": y, "width": COLUMN, "height": ROW, "rx": 6}
        if shown:
            parts.append(element("rect", **box, fill=tint(colour, 0.18), stroke=colour, stroke_width=3 if now else 1.2))
            parts.append(
                text(_x(rank) + COLUMN / 2, y + ROW / 2 + 6, content, 16, anchor="middle", mono=True, room=COLUMN - 12)
            )
        else:
            parts.append(element("rect", **box, fill=PANEL))
    return parts


def _exchange(world: int) -> str:
    """A bar through all ranks between phases 2 and 3: the only place where they meet."""
    y = TOP + 3 * (ROW + GAP) - GAP / 2
    return element("rect", x=_x(0), y=y - 2.5, width=world * (COLUMN + GAP) - GAP, height=5, rx=2.5, fill=COMMUNICATION)


def _x(rank: int) -> int:
    return LEFT + rank * (COLUMN + GAP)
