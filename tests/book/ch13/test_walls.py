"""Is the wall where it was computed by hand, and does its explorer say where one stands?"""

import pytest

from dpbook.book import ch13
from dpbook.book.ch13 import walls
from dpbook.collectives import Link
from dpbook.core import palette
from dpbook.figures.card import axes
from dpbook.planning import ACCELERATORS, Cluster, Job
from tests.cases import each
from tests.figures.reading import NS, check_choices, parse, readable, rings, texts

JOB, FLAT = Job(70 * 10**9), Cluster(ACCELERATORS["H100 SXM"], 256, Link.gigabytes(400), per_node=1)
WORLDS = (128, 256, 512, 1024, 2048)
FSDP = {"stage": "ZeRO-3", "tokens": "4 Mi in all", "algorithm": "Ring"}
DEEPSEEK_V3 = {
    "model": "DeepSeek-V3", "accelerator": "H800", "nodes": "256", "tokens": "60 Mi in all", "stage": "ZeRO-1",
    "cut": "1,024", "accumulation": "120", "itemsize": "fp32", "utilisation": "47 %", "algorithm": "Ring",
}  # fmt: skip
"""The published layout is 16 pipeline stages, experts over 64 GPUs, 15,360 sequences of 4,096 tokens. Here everything
is cut as its experts are."""


def wall():
    return ch13.scaling_wall(JOB, FLAT, 2**20, WORLDS, "70 B")


def paths(root, colour):
    """The points of lines of a colour, without those of the legend."""
    found = [node.get("d") for node in root.iter(f"{NS}path") if node.get("stroke") == colour]
    lines = [[tuple(map(float, point.split())) for point in path[1:].split("L")] for path in found]
    return [line for line in lines if line[0][1] > 100]


def test_the_wall_is_where_it_was_computed_by_hand():
    """N − 1 = D · B / F, for the batch of 256 sequences of 4,096 tokens; three halves of it with all of compute."""
    picture = wall()
    assert "70 B: the wall is at 850 GPUs. Sync = backward at 850. Sync = all of compute at 1,274." in picture.alt
    assert "512: 1.74 s, 100%" in picture.alt
    assert {"850", "1,274"} <= set(texts(parse(picture)))
    assert readable(picture)


def test_computation_is_a_straight_line_of_one_decade_for_ten_times_the_gpus():
    """128 GPUs compute 6 · 70e9 · 2^20 operations at half of 989 TFLOP/s in 6.96 s; the axis is 100 ms to 10 s."""
    (line,) = paths(parse(wall()), palette.COMPUTATION)
    per_decade = (324 - 124) / 2
    assert (324 - line[0][1]) / per_decade == pytest.approx(1.8424, abs=1e-3)  # log10(69.56)
    assert (line[-1][1] - line[0][1]) / per_decade == pytest.approx(1.20412, abs=1e-3)  # log10(16)
    assert [line[0][0], line[1][0], line[-1][0]] == pytest.approx([80, 80 + 660 / 4, 740])


def test_efficiency_is_whole_up_to_the_wall_and_falls_from_it():
    _, efficiency = paths(parse(wall()), palette.INK)
    shares = {round(128 * 16 ** ((x - 80) / 660)): (440 - y) / 80 for x, y in efficiency}
    assert [world for world, share in shares.items() if share > 0.99] == [128, 256, 512, 850]
    assert shares[1024] == pytest.approx(0.88, abs=0.005)


def test_every_choice_of_the_explorer_is_readable_and_as_high_as_the_first():
    """A copy cannot be cut over 1,024 of 256 GPUs."""
    check_choices(ch13.explore_scaling(), contradiction=("cut", "1,024"))


@each(
    ("turned", "message"),
    [
        ({}, "256 GPUs: 305,"),
        ({}, "1,103.6 of 80 GB before activations: DOES NOT FIT"),
        (FSDP, "4.3 of 80 GB before activations: fits"),
        (DEEPSEEK_V3, "2,048 GPUs: 4,"),
    ],
)
def test_the_explorer_says_what_fits_and_how_fast(turned, message):
    explorer = ch13.explore_scaling()
    explorer.set(**turned)
    figure = explorer.figure
    assert message in figure.alt
    assert any(message in line for line in texts(parse(figure)))


@each(
    ("turned", "message"),
    [
        ({"accumulation": "8"}, "sequences are cut: 512 of 4,096 tokens in a micro-batch"),
        ({"stage": "ZeRO-1"}, "ZeRO runs in rings, not by Tree"),
        ({"algorithm": "NVLSTree", "accelerator": "A100 80 GB"}, "no switches that add on A100 80 GB"),
        ({"accelerator": "MI300X", "per_node": "72 (NVL72)", "tokens": "4,096 per GPU"}, "no node has 72 MI300X"),
    ],
)
def test_the_explorer_says_what_is_odd_in_a_choice(turned, message):
    explorer = ch13.explore_scaling()
    assert message not in explorer.figure.alt
    explorer.set(**turned)
    assert explorer.figure.alt.endswith(message)


def test_one_is_on_both_curves_and_so_is_the_last_position():
    explorer = ch13.explore_scaling()
    explorer.set(nodes="64")
    root = parse(explorer.figure)
    assert {"you are here", "last position"} <= set(texts(root))
    legend, *here = rings(root, palette.INK, palette.INK)
    _, *there = rings(root, axes.GHOST, palette.PAPER)
    assert legend[1] < 100 < min(y for _, y in here)
    curves, ghosts = paths(root, palette.INK), paths(root, axes.GHOST)
    for place, curve in zip([*here, *there], [*curves, *ghosts], strict=True):
        assert place in curve
    octave = 660 / 13  # from 4 to 32,768 GPUs
    assert here[0][0] - there[0][0] == pytest.approx(octave, abs=0.02)  # from 256 to 512


def test_a_contradiction_leaves_the_ghost_of_what_is_seen():
    explorer = ch13.explore_scaling()
    assert set(explorer.turned({"cut": "1,024"})) == {"error"}
    assert explorer.chosen["cut"] == "1 GPU"
    explorer.turned({"nodes": "64"})
    assert "last position" in texts(parse(explorer.figure))
    explorer.set(cut="1,024")  # of 512
    explorer.set(cut="8")
    assert "last position" not in texts(parse(explorer.figure))


def test_no_sync_has_no_line_of_communication():
    """A model cut over 1,024 GPUs has one copy on them."""
    explorer = ch13.explore_scaling()
    explorer.set(**DEEPSEEK_V3)
    root = parse(explorer.figure)
    line, step = (max(paths(root, colour), key=len) for colour in (palette.COMMUNICATION, palette.INK))
    assert (line[0][0], len(line)) == (step[1][0], len(step) - 1)


def test_weak_scaling_has_as_many_tokens_on_every_gpu(monkeypatch):
    """Also where that is a part of a sequence: a mebi of tokens on 4,096 GPUs, 2,048 of them on 8."""
    asked, step = [], walls.one_step
    monkeypatch.setattr(walls, "one_step", lambda *given: asked.append(given[2:]) or step(*given))
    found = walls.scaling(JOB, FLAT.of(4096), 2**20, [8, 4096])
    assert [found.walls["backward"], found.walls["all of compute"]] == [850, 1274]
    assert asked[4:] == [(2048, 8), (round(2**20 * 850 / 4096), 850), (round(2**20 * 1274 / 4096), 1274), (2**20, 4096)]
    assert step(JOB, FLAT, 2048, 8).tokens == 256


def test_a_turn_finds_buckets_only_where_they_are_others(monkeypatch):
    made, of = [], Job.of.__func__
    monkeypatch.setattr(
        Job, "of", classmethod(lambda cls, *given, **named: made.append(given) or of(cls, *given, **named))
    )
    walls._job.cache_clear()
    explorer = ch13.explore_scaling()
    for turned in ({}, {"nodes": "64"}, {"accumulation": "2"}, {"stage": "ZeRO-1"}, {"cap": "1 GiB"}):
        explorer.turned(turned)
    assert len(made) == 2
