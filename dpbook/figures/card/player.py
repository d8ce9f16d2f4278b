"""A viewer that steps through pictures: live where a kernel runs, a picture of the first state everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from dpbook.collectives import Schedule
from dpbook.core import check_int
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.plot import Plot
from dpbook.figures.schedules.frames import replay
from dpbook.figures.schedules.schedule import draw_state
from dpbook.figures.schedules.table import Table

INTERVAL = 1200
"""Milliseconds from one step to the next while it plays."""

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def play(schedule: Schedule, buffers: Any = None, *, size: int | None = None) -> Viewer:
    """Step through ``schedule``: a slider, buttons, and a player that can be paused.

    ``buffers`` are one 1-D array per rank; by default rank r contributes 10**r to each of ``size`` elements (one per
    chunk). Every control has a name and works from the keyboard: Tab moves between them, the arrow keys, Home and End
    move the slider. Limits and errors are those of `draw_schedule`.
    """
    states = replay(schedule, buffers, size)
    table = Table(states)
    return Viewer(lambda after: draw_state(table, states[after]), len(states) - 1, "round")


class Viewer:
    """A picture that can be stepped. ``show(after)`` moves it from code; ``picture`` is what it shows now.

    ``draw(after)`` draws the state after so many steps, from 0 to ``steps``; ``step`` is what a step is called.
    """

    def __init__(self, draw: Callable[[int], Picture], steps: int, step: str) -> None:
        self._draw = draw
        self._steps, self._step = steps, step
        self._first = draw(0)
        self.after = 0

    @property
    def picture(self) -> Picture:
        """The state that the viewer shows."""
        return self._draw(self.after)

    def show(self, after: int) -> None:
        """Show the state after so many steps."""
        self.controls.slider.value = check_int("after", after, 0, self._steps)

    @cached_property
    def controls(self) -> Controls:
        """The widgets, made when they are needed first."""
        return Controls(self._steps, self._step, self._redraw)

    def _redraw(self, after: int) -> str:
        self.after = after
        return self.picture.svg

    def __repr__(self) -> str:
        return f"Viewer. {self._first.alt}"

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return live(self._first, self.controls.box, repr(self))


def live(figure: Picture | Plot, box: Any, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """An output: the widget ``box`` where a kernel runs, ``figure`` elsewhere, ``text`` where neither is seen."""
    data, metadata = figure._repr_mimebundle_()
    view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
    return {WIDGET_VIEW: view, **data, "text/plain": text}, metadata


class Controls:
    """The widgets of a viewer. ``draw(after)`` returns the SVG of a state."""

    def __init__(self, steps: int, step: str, draw: Callable[[int], str]) -> None:
        import ipywidgets  # here, so that drawing needs no widgets

        self._draw = draw
        self.picture = ipywidgets.HTML()
        self.slider = ipywidgets.IntSlider(
            value=0, min=0, max=steps, description=step.capitalize(),
            tooltip=f"{step.capitalize()}; arrow keys change it",
            layout={"flex": "1 1 200px", "min_width": "200px", "max_width": "420px"},
        )  # fmt: skip
        self.toggle = ipywidgets.ToggleButton(
            description="Play", icon="play", tooltip=f"Play one {step} after another; press again to pause",
            layout={"width": "90px"},
        )  # fmt: skip
        self.first, self.previous, self.next, self.last = (
            ipywidgets.Button(description=name, tooltip=tooltip, layout={"width": "auto"})
            for name, tooltip in (
                ("First", f"Go to the state before the first {step}"),
                ("Previous", f"Go back by one {step}"),
                ("Next", f"Carry out one {step}"),
                ("Last", f"Go to the state after the last {step}"),
            )
        )
        # The clock of the player lives in the page. Its own buttons have no names, so ours stand for them.
        self.clock = ipywidgets.Play(min=0, max=steps, interval=INTERVAL, layout={"display": "none"})
        ipywidgets.jslink((self.clock, "value"), (self.slider, "value"))
        ipywidgets.jslink((self.toggle, "value"), (self.clock, "playing"))
        self.toggle.observe(self._on_toggle, "value")
        self.slider.observe(self._on_slide, "value")
        for button, target in (
            (self.first, lambda now: 0),
            (self.previous, lambda now: max(now - 1, 0)),
            (self.next, lambda now: min(now + 1, steps)),
            (self.last, lambda now: steps),
        ):
            button.on_click(self._step(target))
        self.picture.value = draw(0)
        row = [self.first, self.previous, self.toggle, self.next, self.last, self.slider, self.clock]
        self.box = ipywidgets.VBox([self.picture, ipywidgets.HBox(row, layout={"flex_flow": "row wrap"})])

    def _step(self, target: Callable[[int], int]) -> Callable[[object], None]:
        def on_click(button: object) -> None:
            self.toggle.value = False  # whoever steps by hand wants no one else to step
            self.slider.value = target(self.slider.value)

        return on_click

    def _on_toggle(self, change: dict[str, Any]) -> None:
        self.toggle.description, self.toggle.icon = ("Pause", "pause") if change["new"] else ("Play", "play")

    def _on_slide(self, change: dict[str, Any]) -> None:
        self.picture.value = self._draw(change["new"])
