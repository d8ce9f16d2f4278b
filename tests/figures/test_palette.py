"""Do the colours stay apart for every reader, and does text read on them?"""

import re
from itertools import combinations

import numpy as np
import pytest

from dpbook.collectives import ring
from dpbook.core import palette
from dpbook.figures import draw_schedule
from dpbook.figures.schedules.table import EDGE, FILL
from dpbook.figures.steps.lanes import FILLS
from tests.cases import each

COLOURS = {
    "computation": palette.COMPUTATION,
    "communication": palette.COMMUNICATION,
    "partial sum": palette.PARTIAL,
    "complete sum": palette.COMPLETE,
    "idle": palette.IDLE,
    "exposed": palette.EXPOSED,
}

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1.0; they act on linear RGB.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


def lab(colour, sight):
    """Return CIE L*a*b* (1976) under D65 of a colour as a reader sees it."""
    seen = np.clip(np.asarray(SIGHT[sight]) @ palette.linear(colour), 0, 1)
    ratio = np.asarray(XYZ) @ seen / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(a, b, sight):
    return float(np.linalg.norm(lab(a, sight) - lab(b, sight)))


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_colours_are_distinguished_on_light_and_dark_pages(sight):
    for a, b in combinations(COLOURS.values(), 2):
        assert distance(a, b, sight) >= 20, (a, b)  # 2.3 is just noticeable
        assert distance(palette.dark(a), palette.dark(b), sight) >= 15, (a, b)


@pytest.mark.parametrize("sight", SIGHT)
def test_cells_of_a_schedule_phases_of_a_timeline_and_verdicts_are_distinguished(sight):
    cells = [FILL[kind] for kind in ("own", "partial", "complete", "fault")]
    for colours, least in ((cells, 12), ({*FILLS.values()}, 10), ((palette.PASS, palette.FAIL), 10)):
        assert min(distance(a, b, sight) for a, b in combinations(colours, 2)) >= least


def test_a_simulation_that_sees_no_difference_would_be_noticed():
    assert distance("#b35a00", "#6f7500", "deuteranopia") < 20 < distance("#b35a00", "#6f7500", "usual")


@each("colour", [*COLOURS.values(), *FILL.values(), *FILLS.values(), palette.PANEL])
def test_text_reads_on_every_colour(colour):
    assert palette.contrast(palette.text_on(colour), colour) >= 4.5


@each("colour", [*COLOURS.values(), *FILL.values()])
def test_in_the_dark_the_text_on_a_colour_reads(colour):
    assert palette.contrast(palette.dark(palette.text_on(colour)), palette.dark(colour)) >= 4.5


@each("ink", [palette.INK, palette.MUTED, palette.EXPOSED])
@each("ground", [palette.PAPER, palette.PANEL])
def test_prose_reads_on_light_and_dark_paper(ink, ground):
    assert palette.contrast(ink, ground) >= 4.5
    assert palette.contrast(palette.dark(ink), palette.dark(ground)) >= 4.5


@each("colour", [palette.PASS, palette.FAIL])
def test_pass_and_fail_read_as_text_and_carry_a_white_sign(colour):
    assert palette.contrast(colour, palette.PAPER) >= 4.5
    for ground in (palette.dark(palette.PAPER), palette.dark(palette.PANEL), "#111111"):  # the last is JupyterLab's
        assert palette.contrast(palette.dark(colour), ground) >= 4.5
    assert palette.contrast(colour, "#111111") >= 3  # a white sign's own ground, in a dark JupyterLab


@each("colour", [palette.COMPUTATION, palette.COMMUNICATION, palette.EXPOSED, *EDGE.values()])
def test_lines_are_seen_on_paper(colour):
    assert palette.contrast(colour, palette.PAPER) >= 3  # WCAG 2.2, non-text contrast


def test_contrast_and_tint_have_the_known_ends():
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.tint("#123456", 1) == "#123456"
    assert palette.tint("#123456", 0) == palette.PAPER


def test_the_dark_twin_of_paper_is_dark_and_that_of_ink_is_light():
    assert palette.contrast(palette.dark(palette.PAPER), "#000000") < 1.5
    assert palette.contrast(palette.dark(palette.INK), "#ffffff") < 1.5


def test_a_picture_has_a_rule_for_each_of_its_colours():
    """A colour without a twin would keep its light value on a dark card."""
    svg = draw_schedule(ring(4), 3).svg
    style = svg[svg.index("<style>") : svg.index("</style>")]
    for what, colour in set(re.findall(r'(fill|stroke)="(#[0-9a-f]{6})"', svg.replace(style, ""))):
        assert f'[{what}="{colour}"]{{{what}:{palette.dark(colour)}}}' in style
