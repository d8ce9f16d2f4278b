"""Does the picture of the wire say what crosses it?"""

from math import log10

import pytest

from dpbook.book import ch11
from dpbook.book.ch11 import trained_parameters, wire_bars
from dpbook.core import palette
from dpbook.figures.card import axes
from tests.cases import each, refuses
from tests.figures.reading import check_choices, parse, readable, rings, texts


def marks(picture, colour):
    """Heights of the links' marks, from the top."""
    return [x for x, _ in sorted(rings(parse(picture), colour, colour), key=lambda place: place[1])]


def test_time_is_bytes_over_bandwidth():
    picture = wire_bars(25e9, "A second")
    assert "Time to send 25 GB" in picture.alt
    assert "InfiniBand HDR 200 Gb/s: 1 s" in picture.alt
    assert "Ethernet 1 Gb/s: 200 s" in picture.alt
    assert {"1 s", "200 s", "between nodes", "inside a node"} <= set(texts(parse(picture)))
    assert readable(picture)


def test_a_mark_is_at_its_time():
    """25 GB: over 1, 25, 100, 200, 400 and 800 Gb/s; the axis has 50 pixels for each of 10 decades from 10 µs on."""
    picture = wire_bars(25e9, "A second")
    seconds = [200, 8, 2, 1, 0.5, 0.25]
    assert marks(picture, palette.COMMUNICATION) == pytest.approx(
        [186 + 50 * log10(t / 1e-5) for t in seconds], abs=0.01
    )
    seconds = [1, 25 / 300, 25 / 450, 25 / 900]  # 25 GB/s, and NVLink 3, 4 and 5 (a direction)
    assert marks(picture, palette.COMPLETE) == pytest.approx([186 + 50 * log10(t / 1e-5) for t in seconds], abs=0.01)


def test_adapters_on_every_linear_layer_are_counted_as_published_shapes_say():
    outputs_and_inputs = 4096 + 2560, 1024 + 2560, 1024 + 2560, 2560 + 4096, *[9728 + 2560] * 3
    assert trained_parameters("Qwen3 4B", 16) == 36 * 16 * sum(outputs_and_inputs)
    assert trained_parameters("Qwen3 4B") == 4_022_468_096


def sent(explorer):
    return explorer.figure.alt.split("sends ")[1].split(" per step")[0]


def test_the_explorer_begins_with_the_claim_of_the_book_on_two_gpus():
    assert sent(ch11.explore_wire()) == "132 MB"


@each(
    ("choices", "bytes_sent"),
    [
        ({"itemsize": "bf16"}, "66.1 MB"),
        ({"micro": "16"}, "132 MB"),
        ({"micro": "16", "forgotten": "forgotten"}, "2.11 GB"),
        ({"forgotten": "forgotten"}, "132 MB"),
        ({"world": "4"}, "198 MB"),
        ({"rank": "all", "model": "Llama-2 7B", "itemsize": "bf16"}, "13.5 GB"),
    ],
)
def test_every_knob_turns_the_bytes_as_it_should(choices, bytes_sent):
    explorer = ch11.explore_wire()
    explorer.set(**choices)
    assert sent(explorer) == bytes_sent


def test_sixteen_times_the_bytes_are_seen_against_the_last_position():
    explorer = ch11.explore_wire()
    assert "last position" not in texts(parse(explorer.figure))
    explorer.set(micro="16")
    explorer.set(forgotten="forgotten")
    root = parse(explorer.figure)
    assert "last position" in texts(root)
    assert "time on the wire, per step: backwards synced 16 of 16" in texts(root)
    now, before = (sorted(x for x, y in rings(root, *kind) if y > 80) for kind in (
        (palette.COMMUNICATION, palette.COMMUNICATION), (axes.GHOST, palette.PAPER)
    ))  # fmt: skip
    assert now[-1] - before[-1] == pytest.approx(50 * log10(16), abs=0.02)


def test_every_position_is_readable_on_the_same_axis():
    check_choices(ch11.explore_wire())


def test_the_axis_holds_the_least_and_the_most():
    """Adapters of rank 4 in bf16 on 2 GPUs over 900 GB/s; 16 times 276 GB nearly twice over 125 MB/s."""
    explorer = ch11.explore_wire()
    explorer.set(rank="LoRA r = 4", itemsize="bf16", model="Qwen3 4B")
    assert min(marks(explorer.figure, palette.COMPLETE)) > 186
    explorer.set(rank="all", itemsize="fp32 (autocast)", model="Llama-2 70B", world="64")
    explorer.set(micro="16", forgotten="forgotten")
    assert max(marks(explorer.figure, palette.COMMUNICATION)) < 686


test_bad_input_is_named = refuses(
    (lambda: wire_bars(-1, "Title"), "nbytes"),
    (lambda: wire_bars(1, ""), "title"),
    (lambda: trained_parameters("Qwen3 4B", -1), "rank"),
)
