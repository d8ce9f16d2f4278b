"""The collectives in one picture: what each rank holds before, and what it holds afterwards."""

from itertools import product

from dpbook.core import palette
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, Card, arrow, aside, line, rect, text

RANKS = range(3)
CHUNKS = "abc"
Grid = tuple[tuple[str, ...], ...]
"""``grid[rank][chunk]``: "a1" is rank 1's own chunk a, "Σa" the sum of all ranks' chunks a, "" nothing that counts."""

OWN: Grid = tuple(tuple(f"{chunk}{rank}" for chunk in CHUNKS) for rank in RANKS)
JOINED = tuple(OWN[rank][rank] for rank in RANKS)
SUMS = tuple(f"Σ{chunk}" for chunk in CHUNKS)
NOTHING = ("",) * len(CHUNKS)


def _on_first(row: tuple[str, ...]) -> Grid:
    return (row, NOTHING, NOTHING)


def _a_chunk_each(row: tuple[str, ...]) -> Grid:
    return tuple(tuple(cell if rank == chunk else "" for chunk, cell in enumerate(row)) for rank in RANKS)


def _everywhere(row: tuple[str, ...]) -> Grid:
    return (row,) * len(RANKS)


FAMILY: dict[str, tuple[Grid, Grid]] = {
    "broadcast": (_on_first(OWN[0]), _everywhere(OWN[0])),
    "scatter": (_on_first(OWN[0]), _a_chunk_each(OWN[0])),
    "gather": (_a_chunk_each(JOINED), _on_first(JOINED)),
    "all-gather": (_a_chunk_each(JOINED), _everywhere(JOINED)),
    "reduce": (OWN, _on_first(SUMS)),
    "reduce-scatter": (OWN, _a_chunk_each(SUMS)),
    "all-reduce": (OWN, _everywhere(SUMS)),
    "all-to-all": (OWN, tuple(zip(*OWN, strict=True))),
}
"""Before and after, by name."""

CELL, ROW, NAMES = 30, 26, 42
GAP = 44  # between before and after: the arrow
PANEL_WIDTH, PANEL_HEIGHT = NAMES + 2 * 3 * CELL + GAP + 18, 3 * ROW + 52
TOP = 84
ARRIVALS = (0.35, 0.7, 0.15)
"""When each rank comes to the barrier, as a share of the panel."""


def draw_family() -> Picture:
    """Draw every collective of `FAMILY` on three ranks, and a barrier."""
    title = "Nine collectives: a row is a rank, a column a chunk of its buffer"
    card = Card(2 * MARGIN + 3 * PANEL_WIDTH, title, "a1 is rank 1's chunk a; Σa is the sum of all ranks' chunks a.")
    for place, name in enumerate([*FAMILY, "barrier"]):
        x, y = MARGIN + place % 3 * PANEL_WIDTH, TOP + place // 3 * PANEL_HEIGHT
        card.add(text(x, y + 12, name, 13, bold=True))
        card.add(_barrier(x, y + 24) if name == "barrier" else _before_and_after(*FAMILY[name], x, y + 24))
    told = " ".join(
        f"{name}: {_in_words(before)} becomes {_in_words(after)}." for name, (before, after) in FAMILY.items()
    )
    names = f"{', '.join(FAMILY)}, and barrier, where every rank waits until all have come."
    return card.picture(TOP + 3 * PANEL_HEIGHT + 4, names, told)


def _before_and_after(before: Grid, after: Grid, x: float, y: float) -> str:
    middle, right = y + 1.5 * ROW, x + NAMES + 3 * CELL + GAP
    names = "".join(aside(x, y + (rank + 0.65) * ROW, f"rank {rank}", 11) for rank in RANKS)
    becomes = arrow(((right - GAP + 8, middle), (right - 10, middle)), 2)
    return names + _grid(before, x + NAMES, y) + becomes + _grid(after, right, y)


def _grid(grid: Grid, x: float, y: float) -> str:
    cells = []
    for rank, chunk in product(RANKS, range(len(CHUNKS))):
        held, left, top = grid[rank][chunk], x + chunk * CELL, y + rank * ROW
        fill = palette.tint(palette.COMPLETE, 0.5) if held in SUMS else palette.PAPER if held else palette.PANEL
        edge = palette.MUTED if held else palette.IDLE
        cells.append(rect(left + 1, top + 1, CELL - 2, ROW - 2, rx=3, fill=fill, stroke=edge))
        if held:
            cells.append(text(left + CELL / 2, top + ROW / 2 + 4, held, 11, anchor="middle"))
    return "".join(cells)


def _barrier(x: float, y: float) -> str:
    """A line for each rank: it comes, it waits, and all go on together."""
    left, length, parts = x + NAMES, PANEL_WIDTH - NAMES - 26, []
    together = left + length * max(ARRIVALS)
    for rank, share in zip(RANKS, ARRIVALS, strict=True):
        middle, comes = y + (rank + 0.5) * ROW, left + length * share
        parts.append(aside(x, middle + 4, f"rank {rank}", 11))
        parts.append(rect(left, middle - 6, comes - left, 12, fill=palette.COMPUTATION))
        parts.append(rect(comes, middle - 6, together - comes, 12, fill=palette.IDLE))
        parts.append(rect(together, middle - 6, left + length - together, 12, fill=palette.COMPUTATION))
    return "".join([*parts, line(together, y, together, y + 3 * ROW, palette.INK, 2, "5 3")])


def _in_words(grid: Grid) -> str:
    return ", ".join(f"rank {rank} {' '.join(filter(None, row)) or 'nothing'}" for rank, row in enumerate(grid))
