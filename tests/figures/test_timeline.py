"""Do pictures of steps show each span of each rank in its place, and the figures of the timeline?"""

import re

import pytest

from dpbook import figures
from dpbook.book import ch07
from dpbook.book.ch08 import gpt, mlp
from dpbook.collectives import AlphaBeta
from dpbook.core import palette
from dpbook.figures.card.svg import text_width
from dpbook.figures.steps import draw_until
from dpbook.figures.steps.lanes import LEFT, links
from dpbook.overlap import (
    MIB,
    STRATEGIES,
    Span,
    Timeline,
    equal_layers,
    hook,
    layers_of,
    plan,
    read_profiles,
    recorded_traces,
    simulate_step,
    tensors_of,
)
from tests.cases import each, refuses
from tests.figures.reading import NS, misplaced, outside, parse, texts

LAYERS = equal_layers(10, 1 / 30, 2 / 30, 1_000_000)
PRICE = AlphaBeta(0, 0.035 / 1e6)


def step(name, **options):
    return simulate_step(LAYERS, STRATEGIES[name](LAYERS), PRICE, **options)


def step_of_ranks(ranks):
    layers = equal_layers(10, 0.1 / 3, 0.2 / 3, 1_000_000)
    return simulate_step(layers, hook(layers), lambda n: 30e-9 * n, factors=[1 + rank / 10 for rank in range(ranks)])


TIMELINES = {name: step(name) for name in STRATEGIES}
CLUSTER = {"ranks": step("hook", factors=(1.0, 1.5), kernel_launch=1e-3), "two streams": step("hook", streams=2)}


def bars(root, colour):
    return [node for node in root.iter(f"{NS}rect") if node.get("fill") == colour and float(node.get("height")) > 15]


@pytest.mark.parametrize("timelines", [TIMELINES, CLUSTER, step("naive")], ids=["strategies", "lanes", "one"])
def test_nothing_leaves_the_picture_and_no_text_lies_on_another(timelines):
    root = parse(figures.draw_timelines(timelines, "Overlap hides all but the last message"))
    assert misplaced(root) == []


def test_every_name_and_its_figures_are_shown():
    picture = figures.draw_timelines(TIMELINES, "Title")
    shown = texts(parse(picture))
    assert [name for name in STRATEGIES if name in shown] == list(STRATEGIES)
    for name, figure in (("naive", "135 ms, exposed 35 ms"), ("hook", "104 ms, exposed 3.5 ms")):
        assert f"{name}: {figure}" in picture.alt
        assert figure in shown


def test_a_step_without_communication_is_not_said_to_expose_any():
    alone = figures.draw_timelines(step("single"), "Title")
    assert "step: 100 ms, no communication" in alone.alt
    assert not [line for line in texts(parse(alone)) if "exposed" in line]


def test_a_long_name_is_shown_in_full_and_no_text_is_small():
    name = "gradients of four micro-batches, each one sent"
    root = parse(figures.draw_timelines({name: CLUSTER["two streams"]}, "Title"))
    assert name in texts(root)
    assert "communication 2" in texts(root)
    endless = parse(figures.draw_timelines({20 * name: step("naive")}, "Title"))
    assert misplaced(endless) == []
    assert min(float(node.get("font-size")) for node in root.iter(f"{NS}text")) >= 12


def test_a_bar_is_as_long_as_its_span():
    root = parse(figures.draw_timelines(TIMELINES, "Title"))
    (message,) = bars(parse(figures.draw_timelines(step("flat"), "Title")), palette.COMMUNICATION)
    alone = parse(figures.draw_timelines(step("single"), "Title"))
    forward, backward = (
        float(bars(alone, colour)[0].get("width")) + 0.8 for colour in (palette.FORWARD, palette.BACKWARD)
    )
    assert backward == pytest.approx(2 * forward, rel=0.02)
    one_ms = float(message.get("width")) / 35
    assert len(bars(root, palette.FORWARD)) == len(bars(root, palette.BACKWARD)) == 5 * 10
    assert float(message.get("x")) == pytest.approx(LEFT + 100 * one_ms, abs=3)


def test_what_is_too_narrow_to_tell_apart_is_drawn_as_one():
    layers = equal_layers(1000, 1 / 30, 2 / 30, 1_000_000)
    picture = figures.draw_timelines(simulate_step(layers, STRATEGIES["hook"](layers), PRICE), "A thousand layers")
    assert 50 < len(bars(parse(picture), palette.BACKWARD)) < 300
    assert {"forward", "backward"} <= set(texts(parse(picture)))  # over the whole run of each
    assert len(picture.svg) < 60_000


@each("draw", [figures.draw_timelines, figures.draw_ranks])
def test_the_same_axis_holds_for_all_and_begins_at_0(draw):
    assert draw(step("naive").shifted(5.0), "Title").svg == draw(step("naive"), "Title").svg


def test_exposed_time_is_marked_under_the_lanes():
    root = parse(figures.draw_timelines(step("naive"), "Title"))
    (strip,) = (n for n in root.iter(f"{NS}rect") if n.get("fill") == palette.EXPOSED and n.get("width") != "14")
    assert float(strip.get("width")) == pytest.approx((880 - LEFT) * 35 / 135, abs=0.1)


def test_phases_are_distinguished_by_letters_and_in_the_legend():
    shown = texts(parse(figures.draw_timelines(step("hook", optimizer=0.02), "Title")))
    assert {"F: forward", "B: backward", "U: update", "F1", "B9→2"} <= set(shown)
    assert "computation" not in shown


def test_a_recorded_trace_says_its_phases_and_draws_no_line_that_it_does_not_know():
    root = parse(figures.draw_ranks(read_profiles(recorded_traces(), step=10), "Title"))
    assert misplaced(root) == []
    for colour in (palette.FORWARD, palette.BACKWARD, palette.UPDATE):
        assert bars(root, colour)
    assert lines(root) == []
    assert "gradient to its call" not in texts(root)


def lines(root):
    """Return the ends, in pixels, of the lines from gradients to calls."""
    paths = (node.get("d") for node in root.findall(f"{NS}path") if node.get("fill") == "none")
    found = (re.findall(r"M(\d+) [\d.]+v2L(\d+) ", path) for path in paths)
    return [tuple(map(int, ends)) for path in found for ends in path]


@pytest.mark.parametrize("name", ["hook", "naive"])
def test_a_line_leads_from_the_end_of_a_backward_to_its_call(name):
    """The backward of the last of ten layers ends after 40 ms, of the next after 46.7; naive calls begin at 100 ms."""
    timeline = step(name)
    one_ms = (880 - LEFT) / (1e3 * timeline.duration)
    ready = [1e3 * (1 / 30 + k * 2 / 300) for k in range(1, 11)]
    begin = ready if name == "hook" else [100 + 3.5 * k for k in range(10)]
    drawn = lines(parse(figures.draw_timelines(timeline, "Title")))
    assert [a for a, _ in drawn] == pytest.approx([LEFT + one_ms * moment for moment in ready], abs=1)
    assert [b for _, b in drawn] == pytest.approx([LEFT + one_ms * moment for moment in begin], abs=1)


def test_a_bucket_of_several_layers_is_joined_to_the_last_of_them():
    buckets = plan(tensors_of(LAYERS), 500_000, None)  # the layers 10 to 6, then 5 to 1
    found = [(a.name, b.name) for a, b in links(simulate_step(LAYERS, buckets, PRICE))]
    assert found == [("backward layer 6", "all-reduce 1"), ("backward layer 1", "all-reduce 2")]


def test_waiting_and_transfer_of_one_call_have_one_line():
    cluster = step("hook", factors=(1.0, 1.5))
    for rank in (0, 1):
        found = links(cluster.of(rank))
        assert [b.name for _, b in found] == [f"all-reduce {k}" for k in range(1, 11)]
        assert {b.kind for _, b in found} == ({"communication"} if rank else {"wait"})


def test_a_line_leads_from_a_launch_to_its_kernel():
    """Kernel 1 begins when it is launched, after 10 of 100 ms; kernel 2 is launched at 15 and begins at 60."""
    launches = [Span("launch", 0, "host", "launch", k * 0.005, (k + 1) * 0.005) for k in (1, 2)]
    kernels = [
        Span("forward 1", 0, "compute", "computation", 0.01, 0.06, ready=0.01),
        Span("forward 2", 0, "compute", "computation", 0.06, 0.1, ready=0.015),
    ]
    root = parse(figures.draw_timelines(Timeline((*launches, *kernels), (0.0, 0.1)), "Title"))
    one_ms = (880 - LEFT) / 100
    ends = [(10, 10), (15, 60)]
    assert lines(root) == [pytest.approx([LEFT + one_ms * ms for ms in pair], abs=1) for pair in ends]
    assert "launch to its kernel" in texts(root)
    assert "gradient to its call" not in texts(root)
    assert misplaced(root) == []


def test_gaps_are_called_idle():
    """In a flat step the wire is idle before 100 ms, and computation after."""
    root = parse(figures.draw_timelines(step("flat"), "Title"))
    gaps = [node for node in root.iter(f"{NS}line") if node.get("stroke") == palette.IDLE]
    late, early = (float(gap.get("x2")) - float(gap.get("x1")) for gap in gaps[1:])
    assert early / late == pytest.approx(100 / 35, rel=0.01)
    assert texts(root).count("idle") == 3  # in both lanes and in the legend


def test_what_runs_is_solid_as_far_as_it_has_run():
    """The one call of a flat step runs from 100 to 135 ms."""
    own = {"flat": step("flat")}
    for now, share in ((0.1, None), (0.107, 0.2), (0.135, 1.0)):
        solid = bars(parse(draw_until(own, "Title", now)), palette.COMMUNICATION)
        assert [float(bar.get("width")) for bar in solid] == (
            [] if share is None else [pytest.approx(share * 35 * (880 - LEFT) / 135, abs=1)]
        )


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
    explorer = ch07.explore_savings()
    assert "saves 19% of the naive step" in explorer.figure.alt  # 135 ms to 100 + 35/4
    explorer.set(buckets="50")
    assert "With 50 buckets overlap saves 25%" in explorer.figure.alt
    explorer.set(buckets="1")
    assert "With 1 bucket overlap saves 0%" in explorer.figure.alt
    assert outside(parse(explorer.figure)) == []


def axes(picture):
    """Return the size, and the places and words of all marks on the axes, which no knob may change."""
    root = parse(picture)
    marks = (n for n in root.iter(f"{NS}text") if n.get("fill") == palette.MUTED or n.get("font-weight") == "700")
    numbers = {(n.get("x"), n.get("y"), n.text) for n in marks if re.fullmatch(r"[\d.]+( (ms|MiB))?", n.text)}
    return root.get("width"), root.get("height"), numbers


def test_explorers_keep_their_size_and_their_axes_whatever_the_knobs_say():
    buckets = figures.explore_buckets(layers_of(gpt(), 0.04), AlphaBeta(1e-4, 1e-9))
    for explorer in (ch07.explore_savings(), buckets):
        first = axes(explorer.figure)
        for name, knob in explorer.knobs.items():
            for choice in knob.values:
                explorer.chosen[name] = choice
                assert axes(explorer.figure) == first
                assert outside(parse(explorer.figure)) == []


def test_the_curve_has_the_step_of_every_cap_and_says_where_one_is():
    layers = layers_of(mlp(), 0.033)
    explorer = figures.explore_buckets(layers, AlphaBeta(1e-4, 1 / 25e9))
    tensors = tensors_of(layers)
    caps = explorer.knobs["cap"].values
    steps = {name: simulate_step(layers, plan(tensors, cap), AlphaBeta(1e-4, 1 / 25e9)) for name, cap in caps.items()}
    explorer.chosen["cap"] = "100 MiB"
    assert ", ".join(f"{name} {1e3 * step.duration:.3g} ms" for name, step in steps.items()) in explorer.figure.alt
    assert f"; you are here: {1e3 * steps['100 MiB'].duration:.3g} ms" in explorer.figure.alt


def test_the_last_position_is_seen_as_a_ring():
    explorer = ch07.explore_savings()
    assert rings(explorer.figure) == []
    here = dots(explorer.figure)
    explorer.set(buckets="8", communication="100 ms")
    assert rings(explorer.figure) == here
    assert not {*dots(explorer.figure)} & {*here}


def rings(picture):
    return [(c.get("cx"), c.get("cy")) for c in parse(picture).iter(f"{NS}circle") if c.get("fill") == "none"]


def dots(picture):
    return [(c.get("cx"), c.get("cy")) for c in parse(picture).iter(f"{NS}circle") if c.get("fill") == palette.INK]


def test_the_best_position_is_named():
    """Backward, two thirds of 100 ms, hides as much communication: 66.7 of 166.7 ms, but for the last of 50 calls."""
    explorer = ch07.explore_savings()
    explorer.set(buckets="50")
    assert f"the best, {(67 - 67 / 50) / 167:.0%}, is at 67 ms" in explorer.figure.alt


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


def test_the_line_of_the_cap_crosses_no_words():
    """A first bucket just below the cap has its size beyond the line."""
    picture = parse(figures.draw_plan(plan(gpt(), 25 * MIB, 9 * MIB), 25 * MIB))
    (line,) = (float(r.get("x")) for r in picture.iter(f"{NS}rect") if r.get("fill") == palette.EXPOSED)
    words = {node: "".join(node.itertext()) for node in picture.iter(f"{NS}text")}
    sizes = [(float(node.get("x")), text) for node, text in words.items() if re.match(r"[\d.]+ \w+, \d+ tensor", text)]
    assert len(sizes) == 13
    assert not any(x < line < x + text_width(text, 11) for x, text in sizes)


def test_a_plan_of_many_buckets_says_how_many_it_leaves_out():
    assert "… 28 buckets …" in texts(parse(figures.draw_plan(plan(mlp(), 25 * MIB))))


@each("count", [12, 13, 14])
def test_no_row_is_spent_on_one_bucket_that_is_left_out(count):
    tensors = tensors_of(equal_layers(count, 0.1, 0.2, 1000 * count))
    shown = texts(parse(figures.draw_plan(plan(tensors, 1, None))))
    rows = [line for line in shown if line.startswith(("bucket ", "… "))]
    assert len(rows) == min(count, 13)
    assert [row for row in rows if row.startswith("…")] == (["… 2 buckets …"] if count == 14 else [])


def test_pictures_are_stacked_in_full():
    explorer = figures.explore_buckets(LAYERS, PRICE)
    root = parse(explorer.figure)
    places = [float(part.get("transform")[12:-1]) for part in root.findall(f"{NS}g[@transform]")]
    lowest = [max(float(t.get("y")) for t in part.iter(f"{NS}text")) for part in root.findall(f"{NS}g[@transform]")]
    assert len(places) == 3
    for place, low, following in zip(places, lowest, [*places[1:], float(root.get("height"))], strict=True):
        assert place + low <= following


test_bad_input_is_named = refuses(
    (lambda: figures.draw_timelines({}, "Title"), "timelines"),
    (lambda: figures.draw_timelines({"a": 1}, "Title"), "timelines"),
    (lambda: figures.draw_timelines(step("naive"), " "), "title"),
    (lambda: figures.draw_timelines(step("naive"), "Title", rank=1), "rank"),
    (lambda: figures.play_step(Timeline((Span("a", 3, "x", "computation", 0, 1),))), "rank"),
    (lambda: figures.draw_plan([[1]]), "plan"),
    (lambda: figures.explore_buckets(tensors_of(LAYERS), PRICE), "layers"),
    (lambda: figures.draw_ranks(step_of_ranks(2), " "), "title"),
    *(
        (lambda it=it: figures.draw_ranks(it, "Title"), "timeline must be a Timeline of 1 to 8 ranks")
        for it in (
            None,
            Timeline((), (0, 1)),
            step_of_ranks(9),
        )
    ),
)


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_every_rank_has_its_lanes(ranks):
    root = parse(figures.draw_ranks(step_of_ranks(ranks), "Title"))
    assert [text for text in texts(root) if text.startswith("rank ")] == [f"rank {rank}" for rank in range(ranks)]
    assert texts(root).count("communication") == ranks + 1  # once in the legend
    assert misplaced(root) == []


def test_each_rank_has_its_own_figures():
    alt = figures.draw_ranks(step_of_ranks(3), "Title").alt
    for rank in range(3):
        assert f"rank {rank}: 123 ms, exposed {9 - 3 * rank} ms" in alt
