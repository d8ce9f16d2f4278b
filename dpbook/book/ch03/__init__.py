"""Chapter 03: Feeding the replicas. Pictures of feeds are grids: a cell is an example, with the ranks that read it."""

from collections.abc import Mapping
from dataclasses import dataclass

from dpbook.core import InvalidArgument, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Attributes, Card, Mark, aside, check_named, line, rect, text
from dpbook.replicas import Feed

GAP = 28
COLUMNS, CELL, CELL_HEIGHT, LINE_HEIGHT = 8, 42, 40, 19
WIDTH = COLUMNS * CELL
MAX_FEEDS, MAX_EXAMPLES, MAX_WORLD = 4, 48, 8

Feeds = Mapping[str, Feed]


def play_feeds(feeds: Feeds) -> Viewer:
    """Step through the epochs of 1 to 4 feeds side by side, by name: which rank reads which example when.

    At the end of an epoch, examples that no rank has read are crossed out, and the next epoch starts with an empty
    grid. In a step with batches for only some ranks, these ranks wait. A feed has at most 48 examples and 8 ranks, and
    all have the same number of epochs. Raises `InvalidArgument`.
    """
    _check(feeds)
    epochs = next(iter(feeds.values())).epochs
    moments = [(0, 0), *((epoch, step + 1) for epoch in range(epochs) for step in range(_steps(feeds, epoch)))]

    def draw(after: int) -> Picture:
        epoch, step = moments[after]
        readings = {name: _read(fed, epoch, step) for name, fed in feeds.items()}
        title = f"Epoch {epoch + 1}, step {step} of {_steps(feeds, epoch)}" if step else "Nothing is read yet"
        lists = {name: _activities(reading, started=step > 0) for name, reading in readings.items()}
        return _draw(title, readings, lists, marked=True)

    return Viewer(draw, len(moments) - 1, "step")


def draw_feeds(feeds: Feeds) -> Picture:
    """Draw the picture of `play_feeds` at the end of the first epoch, with all examples that each rank has read."""
    _check(feeds)
    readings = {name: _read(fed, 0, _steps(feeds, 0)) for name, fed in feeds.items()}
    lists = {name: [_listed(examples) for examples in reading.lists] for name, reading in readings.items()}
    return _draw("Who has read what in epoch 1", readings, lists, marked=False)


@dataclass(frozen=True)
class Reading:
    """State of one feed after some steps of an epoch."""

    readers: list[list[int]]  # of each example, the ranks that have read it
    lists: list[list[int]]  # of each rank, the examples that it has read
    batch: list[list[int]] | None  # of each rank, those of this step; None before the first step and after the last
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
    batches = [[batch.tolist() for batch in local] for local in fed.batches(epoch)]
    lists: list[list[int]] = [[] for _ in range(fed.world)]
    readers: list[list[int]] = [[] for _ in range(fed.examples)]
    for local in batches[:step]:
        for rank, batch in enumerate(local):
            lists[rank] += batch
            for example in batch:
                readers[example].append(rank)
    now = batches[step - 1] if 1 <= step <= len(batches) else None
    return Reading(readers, lists, now, step >= len(batches))


def _activities(reading: Reading, *, started: bool) -> list[str]:
    """Say what each rank does in this step."""
    if reading.batch is None:
        return ["has ended its epoch" if started else "–"] * len(reading.lists)
    if all(reading.batch):
        return [_listed(batch) for batch in reading.batch]
    return [f"{_listed(batch)}, and waits" if batch else "has no batch left" for batch in reading.batch]


def _listed(examples: list[int]) -> str:
    return ", ".join(map(str, examples)) or "nothing"


def _draw(title: str, readings: Mapping[str, Reading], lists: Mapping[str, list[str]], *, marked: bool) -> Picture:
    """Draw panels in rows of two, with ``lists`` below them; ``marked`` underlines this step's examples."""
    columns = min(2, len(readings))
    height = max(42 + _tall(reading) + len(reading.lists) * LINE_HEIGHT + 4 for reading in readings.values())
    width = 2 * MARGIN + columns * (WIDTH + GAP) - GAP
    card = Card(width, title, "large: its rank; small: the example")
    # No colour stands alone: a cell also shows numbers, a cross, or a line.
    repeated = Mark("read more than once", rect(0, 0, 14, 13, rx=2, fill=palette.PARTIAL, stroke=palette.INK))
    marks = [repeated, Mark("never read", "".join(_cross(0, 0, 14, 13)))]
    card.legend([*marks, Mark("this step", rect(0, 5, 14, 4, fill=palette.INK))] if marked else marks)
    top, alts = card.y + 8, []
    for place, (name, reading) in enumerate(readings.items()):
        x, card.y = MARGIN + place % columns * (WIDTH + GAP), top + place // columns * (height + GAP)
        card.add(*_panel(x, card.y, name, reading, lists[name], marked=marked))
        words = [f"rank {rank}: {line}" for rank, line in enumerate(lists[name])] + [reading.tally]
        if reading.repeated:
            words.append(f"more than once: {_listed(reading.repeated)}")
        if reading.ended and reading.unread:
            words.append(f"never: {_listed(reading.unread)}")
        alts.append(f"{name}: {'; '.join(words)}.")
    return card.picture(card.y + height + MARGIN, " ".join(alts))


def _tall(reading: Reading) -> int:
    """Return the height of the grid."""
    return -(-len(reading.readers) // COLUMNS) * CELL_HEIGHT


def _panel(x: float, y: float, name: str, reading: Reading, lines: list[str], *, marked: bool) -> list[str]:
    parts = [text(x, y + 14, name, 14, bold=True, room=WIDTH)]
    parts.append(aside(x, y + 32, reading.tally, room=WIDTH))
    now = {example for batch in reading.batch or [] for example in batch} if marked else set()
    for example, ranks in enumerate(reading.readers):
        row, column = divmod(example, COLUMNS)
        lost = reading.ended and not ranks
        parts += _cell(x + column * CELL, y + 42 + row * CELL_HEIGHT, example, ranks, len(lines), lost, example in now)
    for rank, words in enumerate(lines):
        below = y + 42 + _tall(reading) + (rank + 1) * LINE_HEIGHT
        parts.append(text(x, below, f"rank {rank}", 12, bold=True))
        parts.append(text(x + 50, below, words, 12, mono=True, room=WIDTH - 50))
    return parts


def _cell(x: float, y: float, example: int, ranks: list[int], world: int, lost: bool, now: bool) -> list[str]:
    wide, high, fill = CELL - 4, CELL_HEIGHT - 4, palette.PAPER if lost else palette.PANEL
    edge: Attributes = {}
    if len(ranks) == 1:  # a rank's shade of one hue, from light to full
        fill = palette.tint(palette.COMPUTATION, 0.18 + 0.82 * ranks[0] / max(1, world - 1))
    elif ranks:
        fill, edge = palette.PARTIAL, {"stroke": palette.INK, "stroke_width": 1.6}
    ink = palette.text_on(fill)
    number = text(x + 4, y + 12, str(example), fill=ink if ranks else palette.MUTED)
    parts = [rect(x, y, wide, high, rx=4, fill=fill, **edge), number]
    if lost:
        parts += _cross(x, y, wide, high)
    if ranks:
        label = "+".join(map(str, ranks)) if len(ranks) <= 3 else f"×{len(ranks)}"
        size = {1: 16, 2: 14, 3: 12}.get(len(ranks), 16)
        parts.append(text(x + wide / 2, y + 27, label, size, anchor="middle", bold=True, mono=True, fill=ink))
    if now:
        parts.append(rect(x + 3, y + high - 5, wide - 6, 4, fill=ink))
    return parts


def _cross(x: float, y: float, wide: float, high: float) -> list[str]:
    dashed: Attributes = {"stroke": palette.EXPOSED, "stroke_width": 1.6, "stroke_dasharray": "4 2"}
    left, right, upper, lower = x + 0.3 * wide, x + 0.7 * wide, y + 0.35 * high, y + 0.75 * high
    return [
        rect(x, y, wide, high, rx=3, fill="none", **dashed),
        line(left, upper, right, lower, palette.EXPOSED, 2),
        line(left, lower, right, upper, palette.EXPOSED, 2),
    ]


def _steps(feeds: Feeds, epoch: int) -> int:
    return max(int(fed.steps[epoch].max()) for fed in feeds.values())


def _check(feeds: Feeds) -> None:
    check_named("feeds", feeds, MAX_FEEDS, Feed, f"1 to {MAX_FEEDS} feeds by name")
    for name, fed in feeds.items():
        if fed.examples > MAX_EXAMPLES or fed.world > MAX_WORLD:
            size = f"{fed.examples} examples on {fed.world} ranks"
            raise InvalidArgument(f"feeds[{name!r}]", size, f"at most {MAX_EXAMPLES} on {MAX_WORLD}")
    if len({fed.epochs for fed in feeds.values()}) > 1:
        raise InvalidArgument("feeds", [fed.epochs for fed in feeds.values()], "feeds of one number of epochs")
