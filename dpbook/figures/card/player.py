"""A viewer that steps through pictures, in the page itself: no kernel is needed, and no widget."""

from collections.abc import Callable
from functools import cached_property
from html import escape

from dpbook.core import DATA, check_int
from dpbook.figures.card.film import Film, Frame
from dpbook.figures.card.picture import Bundle, Picture, scrolled

PACE = 1.2
"""Seconds from one step to the next while it plays."""
MIME = "application/vnd.dpbook.player+json"
EXTENSION = DATA / "jupyter/labextensions/dpbook/static"
"""What JupyterLab loads: ``player.js`` steps through the frames."""


class Viewer:
    """Pictures that can be stepped through: ``draw(after)`` draws the state after so many steps, 0 to ``steps``.

    ``step`` is what a step is called, ``under_way(after)`` what moves before that state is reached, ``pace`` how many
    seconds a step takes while it plays. ``show(after)`` moves it from code; ``picture`` is what it shows now.

    In JupyterLab with the book's extension the output is stepped by buttons, a slider and the keyboard, also when it is
    opened again without a kernel. Elsewhere it is a moving picture, with the same controls where scripts may run.
    """

    def __init__(
        self, draw: Callable[[int], Picture], steps: int, step: str, *,
        under_way: Callable[[int], tuple[str, ...]] | None = None, pace: float = PACE,
    ) -> None:  # fmt: skip
        self._draw, self._steps, self._step = draw, steps, step
        self._under_way, self._pace = under_way, pace
        self.after = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}. {self._draw(0).alt}"

    @property
    def picture(self) -> Picture:
        """The state that the viewer shows."""
        return self._draw(self.after)

    def show(self, after: int) -> None:
        """Show the state after so many steps. Raises `InvalidArgument`."""
        self.after = check_int("after", after, 0, self._steps)

    @cached_property
    def film(self) -> Film:
        """All states, one after another, as a drawing that moves."""
        frames = [Frame(self._draw(after), self._way(after)) for after in range(self._steps + 1)]
        return Film(frames, self._pace, f"{frames[0].picture.alt} In the end: {frames[-1].picture.alt}")

    def _way(self, after: int) -> tuple[str, ...]:
        return self._under_way(after) if self._under_way and after else ()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        player = {"step": self._step, "pace": self._pace, "at": self.after, "svg": self.film.svg}
        return {MIME: player, "text/html": self._html, "text/plain": repr(self)}, {}

    @property
    def _html(self) -> str:
        """The moving picture, and a script that makes it a player where scripts may run."""
        settings = f'data-step="{escape(self._step)}" data-pace="{self._pace:g}" data-at="{self.after}"'
        script = (EXTENSION / "player.js").read_text(encoding="utf-8") + "mountAll();\n"
        film = scrolled(self.film.image)
        return f'<div class="dpbook-film" {settings}>{film}</div>\n<script type="module">\n{script}</script>'
