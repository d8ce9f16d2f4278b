"""Does the picture of the wire say what crosses it?"""

import pytest

from dpbook.book import ch11
from dpbook.book.ch11.wire import trained_parameters, wire_bars
from dpbook.core.errors import InvalidArgument
from dpbook.figures.card import palette
from tests.cases import each
from tests.figures.test_plots import shows


def test_time_is_bytes_over_bandwidth():
    plot = wire_bars(25e9, "A second")
    assert "Time to send 25 GB" in plot.alt
    assert "InfiniBand HDR 200 Gb/s: 1 s" in plot.alt
    assert "Ethernet 1 Gb/s: 200 s" in plot.alt
    assert shows(plot, palette.COMMUNICATION)
    assert shows(plot, palette.COMPLETE)


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


@pytest.mark.proof
def test_every_choice_can_be_drawn():
    explorer = ch11.explore_wire()
    for name, knob in explorer.knobs.items():
        for choice in knob.values:
            assert set(explorer.turned({name: choice})) == {"figure"}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: wire_bars(-1, "Title"), "nbytes"),
        (lambda: wire_bars(1, ""), "title"),
        (lambda: trained_parameters("Qwen3 4B", -1), "rank"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InvalidArgument, match=name):
        call()
