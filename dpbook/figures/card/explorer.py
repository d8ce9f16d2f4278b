"""A figure with knobs: drawn anew in the kernel while one runs, the last picture everywhere else."""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from dpbook.core import DpbookError, InvalidArgument, check_one_of
from dpbook.figures.card.picture import Bundle, Picture
from dpbook.figures.card.plot import Plot

MIME = "application/vnd.dpbook.explorer+json"
TARGET = "dpbook.explorer"
"""The name under which a page reaches the explorers of its kernel."""

_shown: dict[str, "Explorer"] = {}
"""What was shown in this kernel, by a name made of what it shows."""


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


class Explorer:
    """A figure drawn anew whenever a knob is turned. ``set`` turns knobs from code; ``figure`` is what it shows now.

    ``draw`` takes the knobs' values by name and returns a `Picture` or a `Plot`. If it has an argument ``before``, that
    is a dict of the values at the last position, for its ghost, or None. Knobs are reached by Tab and turned by the
    arrow keys; JupyterLab needs the book's extension for them.
    """

    def __init__(self, draw: Callable[..., Picture | Plot], knobs: Sequence[Knob]) -> None:
        self._draw = draw
        self._ghost = "before" in signature(draw).parameters
        self.knobs = {knob.name: knob for knob in knobs}
        self.chosen = {knob.name: knob.start or next(iter(knob.values)) for knob in knobs}
        self._before: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}. {self.figure.alt}"

    @property
    def figure(self) -> Picture | Plot:
        """What the explorer shows."""
        before = {"before": self._values(self._before) if self._before else None} if self._ghost else {}
        return self._draw(**self._values(self.chosen), **before)

    def _values(self, chosen: Mapping[str, str]) -> dict[str, Any]:
        return {name: self.knobs[name].values[choice] for name, choice in chosen.items()}

    def set(self, **choices: str) -> None:
        """Turn the named knobs, each to what one of its values is called. Raises `InvalidArgument`."""
        for name, choice in choices.items():
            check_one_of("knob", name, self.knobs)
            check_one_of(name, choice, self.knobs[name].values)
        self._before, self.chosen = self.chosen, {**self.chosen, **choices}

    def turned(self, choices: Mapping[str, str]) -> dict[str, Any]:
        """Turn knobs for a page: the figure for it, or where the choices contradict each other what is wrong.

        What is wrong leaves the explorer where it was, as the picture that the page shows.
        """
        last = self._before, self.chosen
        try:
            self.set(**choices)
            return {"figure": self.figure.html}
        except BaseException as error:  # an interrupted kernel too
            self._before, self.chosen = last
            if isinstance(error, DpbookError):
                return {"error": str(error)}
            raise

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        figure = self.figure
        data, metadata = figure._repr_mimebundle_()
        knobs = [
            {"name": name, "label": knob.label, "values": list(knob.values), "at": list(knob.values).index(choice)}
            for (name, choice), knob in zip(self.chosen.items(), self.knobs.values(), strict=True)
        ]
        name = hashlib.sha256(repr((knobs, figure.alt)).encode()).hexdigest()[:16]
        _shown[name] = self
        _listen()
        return {MIME: {"name": name, "knobs": knobs}, **data, "text/plain": f"Explorer. {figure.alt}"}, metadata


def _listen() -> None:
    """Let pages reach this kernel's explorers, if there is a kernel."""
    with contextlib.suppress(ImportError):
        from comm import get_comm_manager  # comes with ipykernel

        get_comm_manager().register_target(TARGET, _opened)


def _opened(comm: Any, message: Any) -> None:
    """A page turns the knobs of one explorer."""

    def turn(message: Any) -> None:
        asked = message["content"]["data"]
        explorer = _shown.get(asked["name"])
        comm.send(explorer.turned(asked["chosen"]) if explorer else {"gone": True})

    comm.on_msg(turn)
