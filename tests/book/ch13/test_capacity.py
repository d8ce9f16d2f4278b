"""Do the plots of costs and of capacity show and say what they are given?"""

import matplotlib
import numpy as np
import pytest

from dpbook import figures
from dpbook.book import ch13
from dpbook.book.ch13 import walls
from dpbook.collectives import AlphaBeta, Link, crossover, fit
from dpbook.core.errors import InvalidArgument
from dpbook.figures.card import palette
from dpbook.overlap import best_cap, equal_layers
from dpbook.planning import ACCELERATORS, Cluster, Job, Memory, Step, memory_per_rank
from tests.cases import each
from tests.figures.test_plots import shows

SMALL, LARGE = AlphaBeta(1e-5, 4e-9), AlphaBeta(1e-3, 1e-9)
SIZES = np.geomspace(1e4, 1e8, 12)
FIT = fit(SIZES, LARGE(SIZES) * np.where(SIZES < 1e6, 3, 1))
STEPS = [Step(8, 4096, 0.1, 0.2, 0.3, 0.1), Step(1024, 4096, 0.1, 0.2, 0.5, 0.3)]
JOB, FLAT = Job(70 * 10**9), Cluster(ACCELERATORS["H100 SXM"], 256, Link.gigabytes(400), per_node=1)
PLOTS = {
    "curves": lambda: figures.cost_curves({"small": SMALL, "large": LARGE}, "They cross"),
    "fit": lambda: figures.fitted_sweep(FIT, "It fits above 1 MB"),
    "caps": lambda: figures.cap_sweep(best_cap(equal_layers(8, 0.1, 0.2, 8000), AlphaBeta(0.01, 1e-5)), "One is best"),
    "memory": lambda: ch13.memory_bars({"plain": memory_per_rank(10**10, 8)}, 80e9, "It does not fit"),
    "scaling": lambda: ch13.scaling_bars(STEPS, "It falls"),
    "explore memory": lambda: ch13.explore_memory().figure,
    "explore scaling": lambda: ch13.explore_scaling().figure,
    "wall": lambda: ch13.scaling_wall(JOB, FLAT, 2**20, (128, 256, 512, 1024, 2048), "70 B"),
}


@each("draw", PLOTS.values())
def test_a_plot_is_a_small_png_with_its_words_and_leaves_no_settings(draw):
    before = dict(matplotlib.rcParams)
    plot = draw()
    assert plot.png == draw().png
    assert len(plot.png) < 80_000
    assert plot.alt.count(". ") >= 1
    assert dict(matplotlib.rcParams) == before


def test_a_crossover_is_marked_where_it_is():
    assert crossover(SMALL, LARGE) == pytest.approx(330e3)
    assert "large becomes cheaper than small at 330 kB" in PLOTS["curves"]().alt
    assert "becomes" not in figures.cost_curves({"small": SMALL}, "Alone").alt
    assert "becomes" not in figures.cost_curves({"small": SMALL, "large": LARGE}, "No marks", mark=False).alt


def test_a_fit_shows_where_it_is_good():
    assert shows(PLOTS["fit"](), palette.tint(palette.COMPLETE, 0.18))


def test_memory_says_what_fits():
    plot = ch13.memory_bars({"plain": Memory(1e9, 1e9, 6e9), "more": Memory(1e9, 0, 0)}, 4e9, "One fits")
    assert "plain: 8.0 GB; more: 1.0 GB" in plot.alt
    assert shows(plot, palette.EXPOSED)


def test_scaling_tells_efficiency():
    assert "8: 0.4 s, efficiency 75%; 1,024: 0.6 s, efficiency 50%" in PLOTS["scaling"]().alt
    assert not shows(ch13.scaling_bars([Step(1, 4096, 0.1, 0.2, 0, 0)], "Alone"), palette.PARTIAL)


def test_the_memory_explorer_names_the_first_stage_that_fits():
    explorer = ch13.explore_memory()
    assert explorer.figure.alt.startswith("Llama-2 7B on 8 × H100 SXM: ZeRO-1 is enough")
    explorer.set(model="Llama-2 70B")
    assert "nothing fits" in explorer.figure.alt
    explorer.set(world="64")
    assert "ZeRO-3 is enough" in explorer.figure.alt


def test_the_wall_is_where_it_was_computed_by_hand():
    """N − 1 = D · B / F, for the batch of 256 sequences of 4,096 tokens; three halves of it with all of compute."""
    alt = PLOTS["wall"]().alt
    assert "70 B: the wall is at 850 GPUs. Sync = backward at 850. Sync = all of compute at 1,274." in alt
    assert "512: 1.74 s, 100%" in alt


@pytest.mark.proof
def test_the_scaling_explorer_takes_every_choice(monkeypatch):
    """One knob after another, from where it begins; without the drawing, which takes longest."""
    drawn, picture = [], PLOTS["scaling"]()
    monkeypatch.setattr(walls, "scaling_wall", lambda *given: drawn.append(given) or picture)
    explorer = ch13.explore_scaling()
    for name, knob in explorer.knobs.items():
        start = explorer.chosen[name]
        for choice in knob.values:
            too_few = (name, choice) == ("cut", "1,024")  # of 256 GPUs
            assert ("error" in explorer.turned({name: choice})) == too_few, (name, choice)
        explorer.set(**{name: start})
    assert len(drawn) > 40


@each(
    ("preset", "told"),
    [
        ("70 B on 256 H100", "256 GPUs: 305,"),
        ("70 B on 256 H100", "1,103.6 of 80 GB before activations: DOES NOT FIT"),
        ("70 B, FSDP", "4.3 of 80 GB before activations: fits"),
        ("DeepSeek-V3", "2,048 GPUs: 4,"),
    ],
)
def test_the_scaling_explorer_says_what_fits_and_how_fast(preset, told):
    assert told in ch13.explore_scaling(preset).figure.alt


@each(
    ("turned", "told"),
    [
        ({"accumulation": "8"}, "sequences are cut: 512 of 4,096 tokens in a micro-batch"),
        ({"stage": "ZeRO-1"}, "ZeRO runs in rings, not by Tree"),
        ({"algorithm": "NVLSTree", "accelerator": "A100 80 GB"}, "no switches that add on A100 80 GB"),
    ],
)
def test_the_scaling_explorer_says_what_is_odd_in_a_choice(turned, told):
    explorer = ch13.explore_scaling()
    assert told not in explorer.figure.alt
    explorer.chosen |= turned
    assert explorer.figure.alt.endswith(told)


def test_weak_scaling_has_as_many_tokens_on_every_gpu(monkeypatch):
    """Also where that is a part of a sequence: a mebi of tokens on 4,096 GPUs, 2,048 of them on 8."""
    asked, step = [], walls._step
    monkeypatch.setattr(walls, "_step", lambda *given: asked.append(given[2:]) or step(*given))
    ch13.scaling_wall(JOB, FLAT.of(4096), 2**20, [8, 4096], "70 B")
    assert asked[2:] == [(2048, 8), (2**20, 4096)]
    assert step(JOB, FLAT, 2048, 8).tokens == 256


@each(
    ("call", "name"),
    [
        (lambda: figures.cost_curves({}, "Title"), "costs"),
        (lambda: figures.cost_curves({"a": 3}, "Title"), "costs"),
        (lambda: figures.cost_curves({"a": SMALL}, "Title", smallest=10, largest=5), "largest"),
        (lambda: figures.cost_curves({"a": SMALL}, ""), "title"),
        (lambda: figures.fitted_sweep(LARGE, "Title"), "fit"),
        (lambda: figures.cap_sweep([1], "Title"), "sweep"),
        (lambda: ch13.memory_bars({}, 1e9, "Title"), "memories"),
        (lambda: ch13.memory_bars({"a": Memory(1, 1, 1)}, 0, "Title"), "capacity"),
        (lambda: ch13.scaling_bars([], "Title"), "steps"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InvalidArgument, match=name):
        call()
