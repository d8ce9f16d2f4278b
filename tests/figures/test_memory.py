"""Does the picture of memory show the bytes alive at each time, on the axis of the timeline above it?"""

import re
from itertools import combinations

import pytest

from dpbook import figures
from dpbook.core import palette
from dpbook.figures.steps import CONTENT_FILLS, draw_memory_until
from dpbook.figures.steps.lanes import LEFT, WIDTH
from dpbook.figures.steps.timelines import MEMORY_HEIGHT
from dpbook.overlap import Sharding, Sizes, Wires, equal_units, simulate_sharded
from tests.cases import each, refuses
from tests.figures.reading import NS, misplaced, parse, texts
from tests.figures.test_palette import SIGHT, distance


def step(stage=3, **options):
    """A step of two units; the tight one of stage 3 is computed by hand in tests/overlap/test_sharding.py."""
    units = equal_units(2, 2, 4, 20, activations=14, input=2)
    wires = Wires(lambda n: 3, lambda n: 3, lambda n: 3)
    return simulate_sharded(units, Sharding(stage, 2, **options), wires, sizes=Sizes(1, 1, 2))


def bands(picture):
    """Return the corners of each area by its colour."""
    found = {}
    for node in parse(picture).iter(f"{NS}path"):
        if node.get("d").endswith("Z"):
            corners = re.findall(r"([\d.]+) ([\d.]+)", node.get("d"))
            found[node.get("fill")] = [(float(x), float(y)) for x, y in corners]
    return found


def height(corners, x):
    """Return the height of a band of steps at a place where it has no corner."""
    ys = []
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        if y0 == y1 and min(x0, x1) < x < max(x0, x1):
            ys.append(y0)
    return max(ys) - min(ys) if ys else 0.0


@each(
    ("time", "expected"),
    [
        (1, {"optimizer": 20, "weights": 10, "gathered": 10}),
        (11, {"optimizer": 20, "weights": 10, "gathered": 20, "gradients": 10, "activations": 14}),
        (15.5, {"optimizer": 20, "weights": 10, "gradients": 20}),
        (17, {"optimizer": 20, "weights": 10, "gradients": 10, "reduced": 5}),
    ],
)
def test_each_band_is_as_high_as_its_bytes(time, expected):
    found, x = bands(figures.draw_memory(step(), "Title")), LEFT + time / 19 * (WIDTH - LEFT - 20)
    for content, fill in CONTENT_FILLS.items():
        high = height(found.get(fill, []), x) * 74 / MEMORY_HEIGHT
        assert high == pytest.approx(expected.get(content, 0), abs=0.05)


def test_the_peak_is_reported_with_what_is_alive_then():
    picture = figures.draw_memory(step(), "Title")
    assert "peak 74 B" in texts(parse(picture))
    peak = "optimizer state 20 B, weights 10 B, gathered weights 20 B, whole gradients 10 B, activations 14 B"
    assert f"Peak of memory: step: 74 B ({peak})." in picture.alt


def test_what_is_to_come_is_pale_and_the_peak_is_not_reported_before():
    root = parse(draw_memory_until({"step": step()}, "Title", 5))
    (veil,) = (n for n in root.iter(f"{NS}rect") if n.get("fill-opacity"))
    edge = LEFT + 5 / 19 * (WIDTH - LEFT - 20)
    assert float(veil.get("x")) == pytest.approx(edge, abs=0.01)
    assert float(veil.get("x")) + float(veil.get("width")) == pytest.approx(WIDTH - 20, abs=0.02)
    assert not [line for line in texts(root) if line.startswith("peak")]


def test_several_steps_share_their_axes():
    """The peak is 74 bytes in both, so 20 bytes are as many pixels in each."""
    root = parse(figures.draw_memory({"3": step(), "2": step(2)}, "Title"))
    places = [float(n.get("y")) for n in root.iter(f"{NS}text") if n.text in ("0 B", "20 B")]
    zero, twenty, zero_2, twenty_2 = places
    assert zero - twenty == pytest.approx(zero_2 - twenty_2) == pytest.approx(MEMORY_HEIGHT * 20 / 74, abs=0.02)


@each("options", [{}, {"recompute": True}, {"prefetch": 0}, {"reshard": False}])
def test_nothing_leaves_the_picture_and_no_text_lies_on_another(options):
    root = parse(figures.draw_memory({"one": step(**options), "other": step(1)}, "Memory rises and falls"))
    assert misplaced(root) == []


def test_halves_and_recomputation_are_distinguished_by_letters_and_in_the_legend():
    shown = texts(parse(figures.draw_memory(step(recompute=True), "Title")))
    legend = ["F: forward", "B: backward", "R: forward once more", "G: all-gather", "S: reduce-scatter"]
    assert [line for line in shown if line in legend] == legend
    named = {"all-gather 1": "G1", "reduce-scatter 2": "S2", "recompute 1": "R1"}
    assert {"G1", "S2", "R1"} <= {named.get(line, line) for line in shown}


@pytest.mark.parametrize("sight", SIGHT)
def test_what_memory_holds_is_distinguished(sight):
    for colours, least in ((CONTENT_FILLS, 15), ({c: palette.dark(f) for c, f in CONTENT_FILLS.items()}, 10)):
        assert min(distance(a, b, sight) for a, b in combinations(colours.values(), 2)) >= least


@pytest.mark.parametrize("sight", SIGHT)
def test_gathered_weights_and_the_gradients_that_are_stacked_on_them_are_distinguished_when_they_are_pale(sight):
    """Frames of a film show what is to come in pale colours, and in the dark two browns then look alike."""
    pair = [CONTENT_FILLS[content] for content in ("gathered", "gradients")]
    assert distance(*pair, sight) >= 60
    assert distance(*map(palette.dark, pair), sight) >= 60


test_bad_arguments_are_named = refuses(
    (lambda: figures.draw_memory(step(), ""), "title must be"),
    (lambda: figures.draw_memory({}, "Title"), "steps must be"),
    (lambda: figures.draw_memory({"a": step().timeline}, "Title"), "steps must be a ShardedStep"),
    (lambda: figures.draw_memory({str(k): step() for k in range(5)}, "Title"), "steps must be"),
)
