"""A viewer that steps through pictures: live where a kernel runs, a picture of the first state everywhere else."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from dpbook.core import check_int
from dpbook.figures.card.picture import Bundle, Picture
from dpbook.figures.card.plot import Plot

INTERVAL = 1200
"""Milliseconds from one step to the next while it plays."""

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Live:
    """A widget where a kernel runs, its first state elsewhere, and words where neither is seen."""

    def __init__(self, first: Picture | Plot) -> None:
        self._first = first

    def __repr__(self) -> str:
        return f"{type(self).__name__}. {self._first.alt}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        data, metadata = self._first._repr_mimebundle_()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.controls.box.model_id}
        return {WIDGET_VIEW: view, **data, "text/plain": repr(self)}, metadata

    @property
    def controls(self) -> Any:
        """The widgets, all of them in its ``box``."""
        raise NotImplementedError


class Viewer(Live):
    """A picture that can be stepped. ``show(after)`` moves it from code; ``picture`` is what it shows now.

    ``draw(after)`` draws the state after so many steps, from 0 to ``steps``; ``step`` is what a step is called.
    """

    def __init__(self, draw: Callable[[int], Picture], steps: int, step: str) -> None:
        super().__init__(draw(0))
        self._draw, self._steps, self._step = draw, steps, step
        self.after = 0

    @property
    def picture(self) -> Picture:
        """The state that the viewer shows."""
        return self._draw(self.after)

    def show(self, after: int) -> None:
        """Show the state after so many steps."""
        self.controls.slider.value = check_int("after", after, 0, self._steps)

    @cached_property
    def controls(self) -> "Controls":
        """The widgets, made when they are needed first."""
        return Controls(self._steps, self._step, self._redraw)

    def _redraw(self, after: int) -> str:
        self.after = after
        return self.picture.svg


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
        self.first = self._button("First", f"Go to the state before the first {step}", lambda now: 0)
        self.previous = self._button("Previous", f"Go back by one {step}", lambda now: max(now - 1, 0))
        self.next = self._button("Next", f"Carry out one {step}", lambda now: min(now + 1, steps))
        self.last = self._button("Last", f"Go to the state after the last {step}", lambda now: steps)
        # The clock of the player lives in the page. Its own buttons have no names, so ours stand for them.
        self.clock = ipywidgets.Play(min=0, max=steps, interval=INTERVAL, layout={"display": "none"})
        ipywidgets.jslink((self.clock, "value"), (self.slider, "value"))
        ipywidgets.jslink((self.toggle, "value"), (self.clock, "playing"))
        self.toggle.observe(self._on_toggle, "value")
        self.slider.observe(self._on_slide, "value")
        self.picture.value = draw(0)
        row = [self.first, self.previous, self.toggle, self.next, self.last, self.slider, self.clock]
        self.box = ipywidgets.VBox([self.picture, ipywidgets.HBox(row, layout={"flex_flow": "row wrap"})])

    def _button(self, name: str, tooltip: str, target: Callable[[int], int]) -> Any:
        """A button that leads from one state to ``target`` of it."""
        import ipywidgets

        def step(_: object) -> None:
            self.toggle.value = False  # whoever steps by hand wants no one else to step
            self.slider.value = target(self.slider.value)

        button = ipywidgets.Button(description=name, tooltip=tooltip, layout={"width": "auto"})
        button.on_click(step)
        return button

    def _on_toggle(self, change: dict[str, Any]) -> None:
        self.toggle.description, self.toggle.icon = ("Pause", "pause") if change["new"] else ("Play", "play")

    def _on_slide(self, change: dict[str, Any]) -> None:
        self.picture.value = self._draw(change["new"])
