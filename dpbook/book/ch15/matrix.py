"""Every exhibit against every check: which names the cause, which follow from it; recorded, since it takes minutes.

python -m dpbook.book.ch15.matrix    # makes the recording anew
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from dpbook.book.ch15.collection import Exhibit, exhibit, exhibits
from dpbook.book.ch15.judging import bad, verdicts
from dpbook.core import DATA, palette, write_atomically
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, Card, Mark, aside, circle, element, line, text

RECORDED = DATA / "measurements" / "museum.json"
NAMES, KIND, CELL, ROW, HEAD, LEAN = 370, 30, 26, 19, 96, 44
CAUSE, CONSEQUENCE = "cause", "consequence"
Matrix = Mapping[str, Mapping[str, str]]
"""Of each exhibit, by the check that fires or the tool that speaks: "cause" or "consequence"."""


def made(of: Sequence[Exhibit] | None = None) -> dict[str, dict[str, str]]:
    """Run them (default: all), as they are found."""
    return {
        name: {line.name: CONSEQUENCE if line.because else CAUSE for line in bad(lines)}
        for name, lines in verdicts(exhibits() if of is None else of).items()
    }


def record() -> None:
    """Keep what `made` gives now."""
    write_atomically(RECORDED, (json.dumps(made(), indent=1) + "\n").encode())


def recorded() -> Matrix:
    """What `made` gave when it was last kept."""
    matrix: Matrix = json.loads(RECORDED.read_text(encoding="utf-8"))
    return matrix


def draw_matrix(matrix: Matrix) -> Picture:
    """A row for each exhibit, a column for each check that fires somewhere."""
    ordered = sorted(matrix, key=lambda name: (not matrix[name], _first(matrix[name])))
    checks = [check for check, _ in groupby(_first(matrix[name]) for name in ordered) if check]
    checks += sorted({check for fired in matrix.values() for check in fired} - {*checks})
    silent = sum(not fired for fired in matrix.values())
    width = 2 * MARGIN + NAMES + KIND + CELL * len(checks) + LEAN
    card = Card(width, f"{len(matrix)} exhibits: each cause is named once")
    card.legend([Mark("names the cause", _dot(7, 7, CAUSE)), Mark("follows from it", _dot(7, 7, CONSEQUENCE))])
    left, top = MARGIN + NAMES + KIND, card.y + HEAD
    card.add(aside(MARGIN + NAMES, top - 6, "kind", anchor="middle"))
    for place, check in enumerate(checks):
        x = left + (place + 0.5) * CELL
        card.add(element("g", aside(0, 0, check), transform=f"translate({x + 4} {top - 6}) rotate(-60)"))
    for number, name in enumerate(ordered):
        y = top + number * ROW
        card.add(line(MARGIN, y, left + CELL * len(checks), y, palette.PANEL))
        card.add(text(MARGIN, y + 14, exhibit(name).title, 12, room=NAMES - 24))
        card.add(aside(MARGIN + NAMES, y + 14, str(exhibit(name).kind or "–"), anchor="middle"))
        fired = matrix[name].items()
        card.add(*(_dot(left + (checks.index(check) + 0.5) * CELL, y + ROW / 2, what) for check, what in fired))
    told = f"{len(matrix) - silent} are named by one of {len(checks)} checks, {silent} by none"
    return card.picture(top + len(ordered) * ROW + MARGIN, told)


def _first(fired: Mapping[str, str]) -> str:
    return next((check for check, what in fired.items() if what == CAUSE), "")


def _dot(x: float, y: float, what: str) -> str:
    if what == CAUSE:
        return circle(x, y, 6, fill=palette.FAULT)
    return circle(x, y, 5, fill=palette.PAPER, stroke=palette.FAULT_EDGE, stroke_width=1.5)
