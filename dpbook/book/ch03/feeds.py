"""What each rank reads, as a grid: a cell is an example, in it the ranks that have read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpbook.core import InvalidArgument, check_int
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import (
    COMPUTATION,
    EXPOSED,
    INK,
    MUTED,
    PANEL,
    PAPER,
    PARTIAL,
    document,
    element,
    text,
    text_on,
    tint,
)
from dpbook.replicas import Feed

MARGIN, TOP, GAP = 20, 84, 28
ACROSS, CELL, TALL = 8, 42, 40  # examples in a row of the grid, and the size of a cell
LINE = 19
WIDTH = ACROSS * CELL
MAX_FEEDS, MAX_EXAMPLES, MAX_WORLD = 4, 48, 8

Feeds = Mapping[str, Feed]


def play_feeds(feeds: Feeds) -> Viewer:
    """Step through the epochs of 1 to 4 feeds side by side, by name: which rank reads which example when.

    At an epoch's end examples that nobody has read are crossed out, and the next epoch starts with an empty grid.
    A step with batches for some ranks only is one in which those ranks wait. A feed has at most 48 examples and
    8 ranks, and all have the same number of epochs. Raises `InvalidArgument`.
    """
    _check(feeds)
    epochs = next(iter(feeds.values())).epochs
    moments = [(0, 0)]
    for epoch in range(epochs):
        moments += [(epoch, step) for step in range(1, _steps(feeds, epoch) + 1)]
    return Viewer(lambda after: _draw_step(feeds, *moments[after], after), len(moments) - 1, "step")


def draw_feeds(feeds: Feeds, epoch: int = 0) -> Picture:
    """Draw what `play_feeds` shows at the end of an epoch, with everything that each rank has read in it.

    ``epoch`` counts from 0, as for `Feed`; the title counts from 1.
    """
    _check(feeds)
    check_int("epoch", epoch, 0, next(iter(feeds.values())).epochs - 1)
    readings = {name: _read(fed, epoch, _steps(feeds, epoch)) for name, fed in feeds.items()}
    lists = {name: [_listed(own) for own in reading.lists] for name, reading in readings.items()}
    return _draw(f"Who has read what in epoch {epoch + 1}", readings, lists, marked=False)


@dataclass(frozen=True)
class Reading:
    """One feed, so many steps into an epoch.

    ``readers[example]`` are the ranks that have read it, ``lists[rank]`` what a rank has read, and ``batch[rank]`` what
    it reads in this step, or None where there is no step or the feed has ended.
    """

    readers: list[list[int]]
    lists: list[list[int]]
    batch: list[list[int]] | None
    ended: bool

    @property
    def repeated(self) -> list[int]:
        return [example for example, ranks in enumerate(self.readers) if len(ranks) > 1]

    @property
    def unread(self) -> list[int]:
        return [example for example, ranks in enumerate(self.readers) if not ranks]

    @property
    def tally(self) -> str:
        read = len(self.readers) - len(self.unread)
        if self.ended:
            return f"{read} of {len(self.readers)} read, {len(self.repeated)} more than once, {len(self.unread)} never"
        return f"{sum(map(len, self.lists))} read so far, {read} different"


def _read(fed: Feed, epoch: int, step: int) -> Reading:
    batches = [[own.tolist() for own in local] for local in fed.batches(epoch)]
    lists: list[list[int]] = [[] for _ in range(fed.world)]
    readers: list[list[int]] = [[] for _ in range(fed.examples)]
    for local in batches[:step]:
        for rank, own in enumerate(local):
            lists[rank] += own
            for example in own:
                readers[example].append(rank)
    now = batches[step - 1] if 1 <= step <= len(batches) else None
    return Reading(readers, lists, now, step >= len(batches))


def _draw_step(feeds: Feeds, epoch: int, step: int, after: int) -> Picture:
    readings = {name: _read(fed, epoch, step) for name, fed in feeds.items()}
    title = f"Epoch {epoch + 1}, step {step} of {_steps(feeds, epoch)}" if step else "Nothing is read yet"
    lists = {name: _said(reading, started=step > 0) for name, reading in readings.items()}
    return _draw(title, readings, lists, marked=True, after=after)


def _said(reading: Reading, *, started: bool) -> list[str]:
    """What each rank does in this step."""
    if reading.batch is None:
        return ["has ended its epoch" if started else "–"] * len(reading.lists)
    if all(reading.batch):
        return [_listed(own) for own in reading.batch]
    return [f"{_listed(own)}, and waits" if own else "has no batch left" for own in reading.batch]


def _listed(examples: list[int]) -> str:
    return ", ".join(map(str, examples)) or "nothing"


def _draw(
    title: str, readings: Mapping[str, Reading], lists: Mapping[str, list[str]], *, marked: bool, after: int = 0
) -> Picture:
    """Panels in rows of two with ``lists`` below them; ``marked`` says whether this step is underlined."""
    columns = min(2, len(readings))
    height = max(_height(reading) for reading in readings.values())
    width = 2 * MARGIN + columns * (WIDTH + GAP) - GAP
    rows = -(-len(readings) // columns)
    body = [text(MARGIN, 34, title, 17, bold=True, room=width - 2 * MARGIN), *_legend(marked, columns)]
    told = []
    for place, (name, reading) in enumerate(readings.items()):
        x = MARGIN + place % columns * (WIDTH + GAP)
        y = TOP + (0 if columns == 2 else LINE) + place // columns * (height + GAP)
        body += _panel(x, y, name, reading, lists[name], marked=marked)
        ranks = "; ".join(f"rank {rank}: {line}" for rank, line in enumerate(lists[name]))
        odd = [f"more than once: {_listed(reading.repeated)}"] if reading.repeated else []
        odd += [f"never: {_listed(reading.unread)}"] if reading.ended and reading.unread else []
        told.append("; ".join([f"{name}: {ranks}", reading.tally, *odd]))
    alt = f"{title}. " + ". ".join(told) + "."
    bottom = TOP + (0 if columns == 2 else LINE) + rows * (height + GAP) - GAP + MARGIN
    return Picture(document(width, bottom, alt, "", body, data_step=after), alt)


def _legend(marked: bool, columns: int) -> list[str]:
    """The marks; a colour never stands alone: a cell also shows numbers, a cross, or a line."""
    y, second = 58, 0 if columns == 2 else LINE
    x = MARGIN + 178 if columns == 2 else MARGIN
    parts = [
        text(MARGIN, y, "number: rank that read it", 12, fill=MUTED),
        element("rect", x=x, y=y + second - 11, width=14, height=13, rx=2, fill=PARTIAL, stroke=INK, stroke_width=1.6),
        text(x + 20, y + second, "read more than once", 12, fill=MUTED),
        *_cross(x + 160, y + second - 11, 14, 13),
        text(x + 180, y + second, "never read", 12, fill=MUTED),
    ]
    if marked:
        parts += [
            element("rect", x=x + 256, y=y + second - 6, width=14, height=4, fill=INK),
            text(x + 276, y + second, "this step", 12, fill=MUTED),
        ]
    return parts


def _height(reading: Reading) -> float:
    return 42 + -(-len(reading.readers) // ACROSS) * TALL + len(reading.lists) * LINE + 4


def _panel(x: float, y: float, name: str, reading: Reading, lines: list[str], *, marked: bool) -> list[str]:
    parts = [
        text(x, y + 14, name, 14, bold=True, room=WIDTH),
        text(x, y + 32, reading.tally, 12, fill=MUTED, room=WIDTH),
    ]
    now = {example for own in reading.batch or [] for example in own} if marked else set()
    for example, ranks in enumerate(reading.readers):
        column, row = example % ACROSS, example // ACROSS
        lost = reading.ended and not ranks
        parts += _cell(x + column * CELL, y + 42 + row * TALL, example, ranks, len(lines), lost, example in now)
    below = y + 42 + -(-len(reading.readers) // ACROSS) * TALL
    for rank, line in enumerate(lines):
        parts.append(text(x, below + (rank + 1) * LINE, f"rank {rank}", 12, bold=True))
        parts.append(text(x + 50, below + (rank + 1) * LINE, line, 12, mono=True, room=WIDTH - 50))
    return parts


def _cell(x: float, y: float, example: int, ranks: list[int], world: int, lost: bool, now: bool) -> list[str]:
    wide, high = CELL - 4, TALL - 4
    fill = PANEL if not ranks else PARTIAL if len(ranks) > 1 else _shade(ranks[0], world)
    ink = text_on(fill)
    parts = [
        element("rect", x=x, y=y, width=wide, height=high, rx=4, fill=PAPER if lost else fill,
                stroke=INK if len(ranks) > 1 else None, stroke_width=1.6 if len(ranks) > 1 else None),
        text(x + 4, y + 11, str(example), 9.5, fill=ink if ranks else MUTED),
    ]  # fmt: skip
    if lost:
        parts += _cross(x, y, wide, high)
    if ranks:
        written = "+".join(map(str, ranks)) if len(ranks) <= 3 else f"×{len(ranks)}"
        size = {1: 16, 2: 14, 3: 11}.get(len(ranks), 16)
        parts.append(text(x + wide / 2, y + 27, written, size, anchor="middle", bold=True, mono=True, fill=ink))
    if now:
        parts.append(element("rect", x=x + 3, y=y + high - 5, width=wide - 6, height=4, fill=ink))
    return parts


def _cross(x: float, y: float, wide: float, high: float) -> list[str]:
    box = {"x": x, "y": y, "width": wide, "height": high, "rx": 3}
    return [
        element("rect", **box, fill="none", stroke=EXPOSED, stroke_width=1.6, stroke_dasharray="4 2"),
        *(
            element("line", x1=x + wide * 0.3, x2=x + wide * 0.7, y1=y + high * a, y2=y + high * (1.1 - a),
                    stroke=EXPOSED, stroke_width=2)
            for a in (0.35, 0.75)
        ),
    ]  # fmt: skip


def _shade(rank: int, world: int) -> str:
    """A rank's shade of one hue, from light to full."""
    return tint(COMPUTATION, 0.18 + 0.82 * rank / max(1, world - 1))


def _steps(feeds: Feeds, epoch: int) -> int:
    return max(int(fed.steps[epoch].max()) for fed in feeds.values())


def _check(feeds: Feeds) -> None:
    good = isinstance(feeds, Mapping) and 1 <= len(feeds) <= MAX_FEEDS
    if not good or not all(isinstance(fed, Feed) for fed in feeds.values()):
        raise InvalidArgument("feeds", feeds, f"1 to {MAX_FEEDS} feeds by name")
    for name, fed in feeds.items():
        if fed.examples > MAX_EXAMPLES or fed.world > MAX_WORLD:
            size = f"{fed.examples} examples on {fed.world} ranks"
            raise InvalidArgument(f"feeds[{name!r}]", size, f"at most {MAX_EXAMPLES} on {MAX_WORLD}")
    if len({fed.epochs for fed in feeds.values()}) > 1:
        raise InvalidArgument("feeds", [fed.epochs for fed in feeds.values()], "feeds of one number of epochs")
