"""What every picture is made of: SVG, the card and its axes, plots, viewers and explorers."""

from dpbook.figures.card import axes
from dpbook.figures.card.arrows import arrow
from dpbook.figures.card.axes import Key, Scale, seconds_in_words
from dpbook.figures.card.card import Card, Mark, box, legend, ticks
from dpbook.figures.card.drawn import VARIES
from dpbook.figures.card.picture import stacked
from dpbook.figures.card.plot import LINES, check_named, check_title, draw_lines, finish, in_style, new_figure
from dpbook.figures.card.svg import MARGIN, Attributes, aside, circle, element, line, number, rect, text
