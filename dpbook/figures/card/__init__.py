"""What every picture is made of: the palette, SVG, plots, viewers and explorers."""

from dpbook.figures.card import palette
from dpbook.figures.card.palette import (
    COMMUNICATION,
    COMPLETE,
    COMPUTATION,
    EXPOSED,
    IDLE,
    INK,
    MUTED,
    PANEL,
    PAPER,
    PARTIAL,
    text_on,
    tint,
)
from dpbook.figures.card.plot import LINES, check_title, finish, in_style, new_figure
from dpbook.figures.card.svg import document, element, number, text
