"""Parts of every picture: SVG, the card and its axes, plots, viewers and explorers."""

from dpbook.figures.card import axes
from dpbook.figures.card.axes import Key, Scale, seconds_in_words
from dpbook.figures.card.picture import VARIES, Card, Mark, box, check_named, legend, stacked, ticks
from dpbook.figures.card.plot import LINES, blank_figure, draw_lines, finish, in_style, new_figure
from dpbook.figures.card.svg import (
    MARGIN,
    Attributes,
    arrow,
    aside,
    circle,
    element,
    line,
    number,
    rect,
    text,
    text_width,
)
