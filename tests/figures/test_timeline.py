"""Do pictures of steps show each span where and when it is, and the figures of its timeline?"""

import pytest

from dpbook import figures
from dpbook.book.ch08 import gpt, mlp
from dpbook.collectives import AlphaBeta
from dpbook.core.errors import InvalidArgument
from dpbook.figures.card import palette
from dpbook.overlap import MIB, STRATEGIES, Span, Timeline, equal_layers, layers_of, plan, simulate_step, tensors_of
from tests.cases import each
from tests.figures.reading import NS, outside, overlapping, parse, texts

LAYERS = equal_layers(10, 1 / 30, 2 / 30, 1_000_000)
PRICE = AlphaBeta(0, 0.035 / 1e6)


def step(name, **options):
    return simulate_step(LAYERS, STRATEGIES[name](LAYERS), PRICE, **options)


TIMELINES = {name: step(name) for name in STRATEGIES}
CLUSTER = {"ranks": step("hook", factors=(1.0, 1.5), call_launch=1e-3), "two streams": step("hook", streams=2)}


def bars(root, colour):
    return [node for node in root.iter(f"{NS}rect") if node.get("fill") == colour and float(node.get("height")) > 15]


@pytest.mark.parametrize("timelines", [TIMELINES, CLUSTER, step("naive")], ids=["strategies", "lanes", "one"])
def test_nothing_leaves_the_picture_and_no_text_lies_on_another(timelines):
    root = parse(figures.draw_timelines(timelines, "Overlap hides all but the last message"))
    assert outside(root) == []
    assert overlapping(root) == []


def test_every_name_and_its_figures_are_shown():
    picture = figures.draw_timelines(TIMELINES, "Title")
    shown = texts(parse(picture))
    assert [name for name in STRATEGIES if name in shown] == list(STRATEGIES)
    for name, milliseconds, exposed in (("single", 100, "0"), ("naive", 135, "35"), ("hook", 104, "3.5")):
        assert f"{name}: {milliseconds} ms, exposed {exposed} ms" in picture.alt
        assert f"exposed {exposed} ms" in shown


def test_a_bar_is_as_long_as_its_span():
    root = parse(figures.draw_timelines(TIMELINES, "Title"))
    (message,) = bars(parse(figures.draw_timelines(step("flat"), "Title")), palette.COMMUNICATION)
    layers = bars(parse(figures.draw_timelines(step("single"), "Title")), palette.COMPUTATION)
    forward, backward = (float(layers[k].get("width")) + 0.8 for k in (0, 10))
    assert backward == pytest.approx(2 * forward, rel=0.02)
    one_ms = float(message.get("width")) / 35
    assert len(bars(root, palette.COMPUTATION)) == 5 * 20
    assert float(message.get("x")) == pytest.approx(210 + 100 * one_ms, abs=3)


def test_what_is_too_narrow_to_tell_apart_is_drawn_as_one():
    layers = equal_layers(1000, 1 / 30, 2 / 30, 1_000_000)
    picture = figures.draw_timelines(simulate_step(layers, STRATEGIES["hook"](layers), PRICE), "A thousand layers")
    assert len(bars(parse(picture), palette.COMPUTATION)) < 300
    assert len(picture.svg) < 60_000


def test_the_same_axis_holds_for_all_and_begins_at_0():
    late = step("naive").shifted(5.0)
    assert figures.draw_timelines({"a": late}, "Title").svg == figures.draw_timelines({"a": step("naive")}, "Title").svg


def test_exposed_time_is_marked_under_the_lanes():
    root = parse(figures.draw_timelines(step("naive"), "Title"))
    strip = [n for n in root.iter(f"{NS}rect") if n.get("fill") == palette.EXPOSED and n.get("height") == "5"]
    assert len(strip) == 1
    assert float(strip[0].get("width")) == pytest.approx((900 - 230) * 35 / 135, abs=0.1)


def test_stepping_moves_the_meters_from_nothing_to_all():
    viewer = figures.play_step(step("hook"))
    viewer.after = 0
    assert "exposed so far 0 ms" in viewer.picture.alt
    computed = []
    for after in range(viewer._steps + 1):
        viewer.after = after
        assert outside(parse(viewer.picture)) == []
        line = next(t for t in texts(parse(viewer.picture)) if t.startswith("computed"))
        computed.append(float(line.split()[1]))
    assert computed == sorted(computed)
    assert (computed[0], computed[-1]) == (0, 100)
    assert "communicated 35 ms of 35 ms · exposed so far 3.5 ms" in viewer.picture.alt
    assert viewer.picture.alt.startswith("The step took 104 ms; 3.5 ms of communication were exposed")


def test_the_savings_are_those_of_the_formula():
    explorer = figures.explore_savings()
    assert "saves 19% of the naive step" in explorer.figure.alt  # 135 ms to 100 + 35/4
    explorer.set(buckets="50")
    assert "With 50 buckets overlap saves 25%" in explorer.figure.alt
    explorer.set(buckets="1")
    assert "With 1 bucket overlap saves 0%" in explorer.figure.alt
    assert outside(parse(explorer.figure)) == []


def test_the_slider_that_does_nothing():
    explorer = figures.explore_buckets(layers_of(mlp(), 0.033), AlphaBeta(1e-4, 1 / 25e9))
    for cap, buckets in (("1 MiB", 40), ("25 MiB", 40), ("100 MiB", 21), ("640 MiB", 5)):
        explorer.set(cap=cap)
        assert f"80 tensors in {buckets} buckets" in explorer.figure.alt


@each("tensors", [mlp(), gpt(), mlp(depth=400, width=8)])
@each("cap", [0, MIB, 25 * MIB, 1 << 40])
def test_a_plan_is_drawn_within_its_picture(tensors, cap):
    drawn = plan(tensors, cap, None)
    picture = figures.draw_plan(drawn, cap)
    assert outside(parse(picture)) == []
    assert f"in {drawn.calls} bucket" in picture.alt
    assert len(picture.svg) < 60_000


def test_a_plan_of_many_buckets_says_how_many_it_leaves_out():
    assert "… 28 buckets …" in texts(parse(figures.draw_plan(plan(mlp(), 25 * MIB))))


def test_pictures_are_stacked_in_full():
    explorer = figures.explore_buckets(LAYERS, PRICE, caps=(1,))
    root = parse(explorer.figure)
    inner = root.findall(f"{NS}svg")
    assert [float(part.get("y")) for part in inner] == [0, float(inner[0].get("height"))]
    assert float(root.get("height")) == sum(float(part.get("height")) for part in inner)


@each(
    ("call", "name"),
    [
        (lambda: figures.draw_timelines({}, "Title"), "timelines"),
        (lambda: figures.draw_timelines({"a": 1}, "Title"), "timelines"),
        (lambda: figures.draw_timelines(step("naive"), " "), "title"),
        (lambda: figures.draw_timelines(step("naive"), "Title", rank=1), "rank"),
        (lambda: figures.play_step(Timeline((Span("a", 3, "x", "computation", 0, 1),))), "rank"),
        (lambda: figures.draw_plan([[1]]), "plan"),
        (lambda: figures.explore_buckets(LAYERS, PRICE, caps=()), "values"),
        (lambda: figures.explore_buckets(tensors_of(LAYERS), PRICE), "layers"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InvalidArgument, match=name):
        call()
