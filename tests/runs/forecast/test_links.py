"""Is a link what its name says?"""

import json
import re

import numpy as np
import pytest

from dpbook.core.errors import DpbookError, InvalidArgument
from dpbook.overlap import Layer, Tensor
from dpbook.planning import LINKS
from dpbook.ranks import Sweep
from dpbook.runs.forecast import MeasuredStep, as_json, connection, fit_connection, forecast, format_forecast
from dpbook.runs.forecast.predictions import SHORT_NAMES
from tests.cases import each

MEASURED = MeasuredStep((Layer("a", 0.01, 0.02, (Tensor("a", 2**20),)),), other=0.005, after=0.007, updates=12)


def test_every_link_that_is_known_has_a_short_name():
    assert sorted(SHORT_NAMES.values()) == sorted(LINKS)


@each(
    ("text", "bandwidth", "latency"),
    [
        ("25GbE", 25e9 / 8, 20e-6),
        ("25gbe", 25e9 / 8, 20e-6),
        ("NVLink 4", 450e9, 3e-6),
        ("500Mb/s", 500e6 / 8, 0),
        ("500Mb/s+50us", 500e6 / 8, 50e-6),
        ("12.5GB/s", 12.5e9, 0),
    ],
)
def test_names_and_rates(text, bandwidth, latency):
    link = connection(text).link
    assert (link.bandwidth, link.latency) == (pytest.approx(bandwidth), pytest.approx(latency))


def test_an_unknown_link_is_named_beside_those_that_are_known():
    with pytest.raises(InvalidArgument, match=r"25GbE.*NVLink5.*got 'warp'"):
        connection("warp")


@each("text", ["", "25", "1.2.3Gb/s", "0Gb/s", "900000GB/s"])
def test_what_is_no_link(text):
    with pytest.raises(DpbookError):
        connection(text)


@each(
    ("name", "worlds", "too_many"),
    [
        ("NVLink4", [2, 8], []),
        ("NVLink4", [8, 64], ["64"]),
        ("NVLink3", [64, 16, 16], ["16", "64"]),
        ("NVLink5", [64, 72], []),
        ("NVLink5", [144], ["144"]),
        ("25GbE", [4096], []),
        ("500Mb/s", [64], []),
    ],
)
def test_a_note_says_that_nvlink_does_not_join_so_many_gpus(name, worlds, too_many):
    rows = forecast(MEASURED, worlds, [connection(name)])
    notes = [line for line in format_forecast(MEASURED, rows).splitlines() if line.startswith("note: ")]
    assert json.loads(as_json([MEASURED], rows))["notes"] == [note.removeprefix("note: ") for note in notes]
    assert len(notes) == bool(too_many)
    for note in notes:
        assert re.findall(r"on (\d+)", note) == too_many
        assert "Give --link the nodes" in note


NODES = "8xNVLink4+NDR"


@each(("gpus", "alpha", "share"), [(4, 6 * 3e-6, 1.5 / 450e9), (8, 14 * 3e-6, 1.75 / 450e9),
                                   (64, 14 * 5e-6 + 112 * 3e-6, 126 / 64 / 400e9)])  # fmt: skip
def test_nodes_have_a_ring_through_each_port(gpus, alpha, share):
    price = connection(NODES).price(gpus)
    assert (price.alpha, price.beta) == (pytest.approx(alpha), pytest.approx(share))


@each(
    ("text", "inside", "between"),
    [("2x450GB/s+3us+50GB/s+5us", 450e9, 50e9), ("2xnvlink4+100Gb/s", 450e9, 12.5e9), ("72xNVLink5+XDR", 900e9, 100e9)],
)
def test_nodes_may_have_any_links(text, inside, between):
    nodes = connection(text)
    assert (nodes.inside.bandwidth, nodes.link.bandwidth) == (pytest.approx(inside), pytest.approx(between))


@each("text", ["16xNVLink4+NDR", "1xNVLink4+NDR", "8xwarp+NDR", "8xNDR"])
def test_what_are_no_nodes(text):
    with pytest.raises(InvalidArgument, match=r"^link must be"):
        connection(text)


def test_only_whole_nodes_have_a_price():
    with pytest.raises(InvalidArgument, match=r"^gpus must be at most 8, or a multiple of it.*got 12"):
        forecast(MEASURED, [12], [connection(NODES)])


def test_a_speed_up_above_the_number_of_gpus_has_a_reason():
    rows = forecast(MEASURED, [8], [connection(NODES)], stages=(0, 3))
    assert [row.speedup > 8 for row in rows] == [False, True]
    assert "note: a speed-up above the number of GPUs" in format_forecast(MEASURED, rows)
    assert "note: a speed-up" not in format_forecast(MEASURED, rows[:1])


def test_a_sweep_is_made_into_the_link_of_a_ring():
    nbytes, alpha, beta = np.array([1024, 2**20, 2**24]), 20e-6, 1e-9
    seconds = (6 * alpha + 1.5 * beta * nbytes)[:, None]  # a ring of four: 2 · 3 hops, 2 · 3/4 of the bytes
    here = fit_connection(Sweep(4, nbytes, seconds))
    assert (here.link.latency, here.link.bandwidth) == (pytest.approx(alpha), pytest.approx(1 / beta))
    assert here.price(4)(2**20) == pytest.approx(seconds[1, 0])
    assert here.price(2)(2**20) == pytest.approx(2 * alpha + beta * 2**20)
    with pytest.raises(InvalidArgument):
        fit_connection(Sweep(1, nbytes, seconds))
