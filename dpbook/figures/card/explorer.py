"""A figure with knobs: live where a kernel runs, a picture of its first state everywhere else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from typing import Any

from dpbook.core import DpbookError, InvalidArgument, check_one_of
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.player import Live
from dpbook.figures.card.plot import Plot


@dataclass(frozen=True)
class Knob:
    """One thing to vary: the argument ``name`` of the drawing, its ``label``, and its values by what they are called.

    ``start`` is what the first value is called (default: the first). It becomes a slider: in JupyterLab the arrow keys
    of a list belong to the notebook.
    """

    name: str
    label: str
    values: Mapping[str, Any]
    start: str | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidArgument(f"values of {self.name}", self.values, "at least one")
        if self.start is not None:
            check_one_of(self.name, self.start, self.values)


class Explorer(Live):
    """A figure drawn anew whenever a knob is turned. ``set`` turns knobs from code; ``figure`` is what it shows now.

    ``draw`` takes the knobs' values by name and returns a `Picture` or a `Plot`. Knobs are reached by Tab and turned
    by the arrow keys.
    """

    def __init__(self, draw: Callable[..., Picture | Plot], knobs: Sequence[Knob]) -> None:
        self._draw = draw
        self._knobs = {knob.name: knob for knob in knobs}
        self.chosen = {knob.name: knob.start or next(iter(knob.values)) for knob in knobs}
        super().__init__(self.figure)

    @property
    def figure(self) -> Picture | Plot:
        """What the explorer shows."""
        return self._draw(**{name: self._knobs[name].values[choice] for name, choice in self.chosen.items()})

    def set(self, **choices: str) -> None:
        """Turn the named knobs, each to what one of its values is called. Raises `InvalidArgument`."""
        for name, choice in choices.items():
            check_one_of("knob", name, self._knobs)
            check_one_of(name, choice, self._knobs[name].values)
        for name, choice in choices.items():
            self.controls.knobs[name].value = choice

    @cached_property
    def controls(self) -> "Controls":
        """The widgets, made when they are needed first."""
        return Controls(self._knobs.values(), self.chosen, self._redraw)

    def _redraw(self, name: str, choice: str) -> str:
        """The figure with one knob turned, as HTML; where the choices contradict each other, what is wrong."""
        self.chosen[name] = choice
        try:
            return self.figure.inline
        except DpbookError as error:
            return f'<p role="alert" style="max-width:60em">{escape(str(error))}</p>'


class Controls:
    """The widgets of an explorer. ``redraw(name, choice)`` turns a knob and returns the figure as HTML."""

    def __init__(self, knobs: Any, chosen: Mapping[str, str], redraw: Callable[[str, str], str]) -> None:
        import ipywidgets  # here, so that drawing needs no widgets

        self.picture = ipywidgets.HTML()
        self.knobs = {}
        for knob in knobs:
            self.knobs[knob.name] = widget = ipywidgets.SelectionSlider(
                options=list(knob.values), value=chosen[knob.name], description=knob.label, tooltip=knob.label,
                style={"description_width": "initial"},
                layout={"flex": "1 1 320px", "min_width": "320px", "max_width": "520px"},
            )  # fmt: skip
            widget.observe(partial(self._turn, redraw, knob.name), "value")
        self.picture.value = redraw(*next(iter(chosen.items())))
        row = ipywidgets.HBox(list(self.knobs.values()), layout={"flex_flow": "row wrap"})
        self.box = ipywidgets.VBox([self.picture, row])

    def _turn(self, redraw: Callable[[str, str], str], name: str, change: dict[str, Any]) -> None:
        self.picture.value = redraw(name, change["new"])
