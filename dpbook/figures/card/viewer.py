"""Pictures that a reader turns: films that step through states without a kernel, and figures with knobs.

A film holds all its frames as groups of one SVG, each visible for its time; what several frames share is stored once.
Where nothing moves (on paper, or for readers whose system asks for less motion) the last frame shows. A viewer's
script, ``player.js``, takes the same frames out of the film and steps through them. A figure with knobs is drawn anew
in the kernel while one runs; everywhere else its last picture shows.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from inspect import signature
from typing import Any, NamedTuple

from dpbook.core import DATA, DpbookError, InvalidArgument, check_int, check_one_of
from dpbook.figures.card.picture import Bundle, Drawing, Picture, data_uri, scrolled
from dpbook.figures.card.svg import document, element, number
from dpbook.figures.card.svg import escape as escape_xml

PACE = 1.2
"""Seconds from one step to the next while a viewer plays."""
MOVE_SHARE = 0.6
"""Share of a frame's time in which things move to it, and the longest such time in seconds."""
STILL = "(prefers-reduced-motion:reduce),print"
"""Media query for readers and printers that want no motion."""
STYLE = f"@media {STILL}{{.way,.frame{{display:none}}.frame:last-child{{display:inline;visibility:visible!important}}}}"
PLAYER_MIME = "application/vnd.dpbook.player+json"
EXPLORER_MIME = "application/vnd.dpbook.explorer+json"
EXTENSION = DATA / "jupyter/labextensions/dpbook/static"
"""JupyterLab's extension; its ``player.js`` steps through the frames."""
COMM_TARGET = "dpbook.explorer"
"""Name under which a page reaches the explorers of its kernel."""


def move_seconds(pace: float) -> float:
    """Return how long things move to a frame, if a frame has ``pace`` seconds."""
    return min(MOVE_SHARE, MOVE_SHARE * pace)


class Frame(NamedTuple):
    """Picture of a film, and elements ``under_way`` that are shown before it because they move.

    Motions to frame n begin at ``way{n}.begin``.
    """

    picture: Picture
    under_way: tuple[str, ...] = ()


class Film(Drawing):
    """``frames`` of one size, ``pace`` seconds each; the last one stays for three times as long, then all repeat."""

    def __init__(self, frames: Sequence[Frame], pace: float, alt: str) -> None:
        self.frames, self.pace, self.alt = frames, pace, alt
        self.width = max(frame.picture.width for frame in frames)
        self.height = max(frame.picture.height for frame in frames)

    @cached_property
    def svg(self) -> str:  # type: ignore[override]
        """SVG document of the film."""
        uses = Counter(part for frame in self.frames for part in (*frame.picture.body, *frame.under_way))
        ids = {part: f"p{index}" for index, part in enumerate(part for part, n in uses.items() if n > 1)}
        shared = element("defs", (element("g", part, id=name) for part, name in ids.items()))
        # The animation from whose beginning all times count; it changes nothing.
        seconds = (len(self.frames) + 2) * self.pace
        clock = element(
            "animate", id="clock", attributeName="x", values="0;0", begin="0s;clock.end", dur=f"{number(seconds)}s"
        )
        body = [element("rect", clock, width=0, height=0), shared]
        for index, frame in enumerate(self.frames):
            body += self._groups(index, frame, ids)
        return document(self.width, self.height, self.alt, "", body, STYLE)

    @property
    def image(self) -> str:
        """Moving image, or the last frame for readers who ask for less motion and on paper.

        The page chooses, because Chromium 156 does not pass the reader's preference on to an image.
        """
        still = data_uri(self.frames[-1].picture.svg)
        return f'<picture><source media="{STILL}" srcset="{still}">{super().image}</picture>'

    def _groups(self, index: int, frame: Frame, ids: dict[str, str]) -> Iterator[str]:
        """Yield the group of the elements under way to a frame, if there are any, and that of the frame."""
        start, last = index * self.pace, index == len(self.frames) - 1
        moving = move_seconds(self.pace) if frame.under_way else 0.0
        if moving:
            shown = _set_visibility(start, moving, name=f"way{index}")
            yield element("g", [*_parts(frame.under_way, ids), shown], class_="way", visibility="hidden")
        words = [element("title", escape_xml(frame.picture.alt))]
        words += [element("desc", escape_xml(frame.picture.description))] if frame.picture.description else []
        parts = [*words, *_parts(frame.picture.body, ids)]
        if last:  # visible if nothing moves
            hidden = [_set_visibility(0, start + moving, "hidden")] if start + moving else []
            yield element("g", [*parts, *hidden], class_="frame")
        else:
            shown = _set_visibility(start + moving, self.pace - moving)
            yield element("g", [*parts, shown], class_="frame", visibility="hidden")


def _parts(markup: Sequence[str], ids: dict[str, str]) -> Iterator[str]:
    """Yield each part itself, or a reference to it if it is shared."""
    return (element("use", href=f"#{ids[part]}") if part in ids else part for part in markup)


def _set_visibility(start: float, seconds: float, to: str = "visible", name: str | None = None) -> str:
    begin, dur = f"clock.begin+{number(start)}s", f"{number(seconds)}s"
    return element("set", id=name, attributeName="visibility", to=to, begin=begin, dur=dur)


class Viewer:
    """Pictures to step through in the page itself, without a kernel and without a widget.

    ``draw(after)`` draws the state after 0 to ``steps`` steps. ``step`` is the name of a step, ``under_way(after)``
    returns what moves before that state is reached, and ``pace`` is the time of a step in seconds while it plays.
    ``show(after)`` moves the viewer from code; ``picture`` is what it shows now.

    In JupyterLab with the book's extension, buttons, a slider and the keyboard step through the output, also when the
    notebook is opened again without a kernel. Elsewhere it is a moving picture, with the same controls if scripts may
    run.
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
        """Picture of the state that the viewer shows."""
        return self._draw(self.after)

    def show(self, after: int) -> None:
        """Show the state after ``after`` steps. Raises `InvalidArgument`."""
        self.after = check_int("after", after, 0, self._steps)

    @cached_property
    def film(self) -> Film:
        """Film of all states, one after another."""
        frames = [Frame(self._draw(0))]
        for after in range(1, self._steps + 1):
            frames.append(Frame(self._draw(after), self._under_way(after) if self._under_way else ()))
        return Film(frames, self._pace, f"{frames[0].picture.alt} In the end: {frames[-1].picture.alt}")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        player = {"step": self._step, "pace": self._pace, "at": self.after, "svg": self.film.svg}
        # A moving picture, and a script that makes it a player where scripts may run.
        settings = f'data-step="{escape(self._step)}" data-pace="{self._pace:g}" data-at="{self.after}"'
        film = f'<div class="dpbook-film" {settings}>{scrolled(self.film.image)}</div>'
        script = (EXTENSION / "player.js").read_text(encoding="utf-8") + "mountAll();\n"
        html = f'{film}\n<script type="module">\n{script}</script>'
        return {PLAYER_MIME: player, "text/html": html, "text/plain": repr(self)}, {}


@dataclass(frozen=True)
class Knob:
    """Argument ``name`` of a drawing that the reader may vary: its ``label``, and its values by their names.

    ``start`` is the name of the first value (default: the first one). A knob is a slider, because the arrow keys of a
    list belong to the notebook in JupyterLab.
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
    """Figure drawn anew whenever a knob is turned. ``set`` turns knobs from code; ``figure`` is what it shows now.

    ``draw`` takes the knobs' values by name and returns a `Picture`. If it has an argument ``before``, that is a dict
    of the values at the last position, for its ghost, or None. Knobs are reached by Tab and turned by the arrow keys;
    JupyterLab needs the book's extension for them. Where no kernel runs, those of ``filmed`` turn (default: all), for
    which all pictures are drawn beforehand.
    """

    def __init__(
        self, draw: Callable[..., Picture], knobs: Sequence[Knob], filmed: Sequence[str] | None = None
    ) -> None:
        self._draw = draw
        self._has_ghost = "before" in signature(draw).parameters
        self.knobs = {knob.name: knob for knob in knobs}
        self.filmed = list(self.knobs if filmed is None else filmed)
        self.chosen = {knob.name: knob.start or next(iter(knob.values)) for knob in knobs}
        self._before: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}. {self.figure.alt}"

    @property
    def figure(self) -> Picture:
        """Picture at the current position of the knobs."""
        return self.at(self.chosen, self._before)

    def at(self, choices: Mapping[str, str], before: Mapping[str, str] | None = None) -> Picture:
        """Return the picture at these choices for all knobs, with the ghost of those ``before``, if given."""
        ghost = {"before": self._values(before) if before else None} if self._has_ghost else {}
        return self._draw(**self._values(choices), **ghost)

    def _values(self, chosen: Mapping[str, str]) -> dict[str, Any]:
        return {name: self.knobs[name].values[choice] for name, choice in chosen.items()}

    def set(self, **choices: str) -> None:
        """Turn the named knobs, each to the name of one of its values. Raises `InvalidArgument`."""
        for name, choice in choices.items():
            check_one_of("knob", name, self.knobs)
            check_one_of(name, choice, self.knobs[name].values)
        self._before, self.chosen = self.chosen, {**self.chosen, **choices}

    def turned(self, choices: Mapping[str, str]) -> dict[str, Any]:
        """Turn knobs for a page and return the new figure, or the error if the choices contradict each other.

        After an error the explorer keeps its position, like the picture that the page shows.
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
        _explorers[name] = self
        # Let pages reach this kernel's explorers, if there is a kernel.
        with contextlib.suppress(ImportError):
            from comm import get_comm_manager  # comes with ipykernel

            get_comm_manager().register_target(COMM_TARGET, _on_open)
        explorer = {"name": name, "knobs": knobs}
        return {EXPLORER_MIME: explorer, **data, "text/plain": f"Explorer. {figure.alt}"}, metadata


_explorers: dict[str, Explorer] = {}
"""Explorers shown in this kernel, by a hash of what they show."""


def _on_open(comm: Any, message: Any) -> None:
    """Answer a page that turns the knobs of an explorer."""

    def turn(message: Any) -> None:
        request = message["content"]["data"]
        explorer = _explorers.get(request["name"])
        comm.send(explorer.turned(request["chosen"]) if explorer else {"gone": True})

    comm.on_msg(turn)
