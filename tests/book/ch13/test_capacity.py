"""Do the pictures of memory and of steps, and the explorer of memory, show what fits?"""

from math import log2

import pytest

from dpbook.book import ch13
from dpbook.core import palette
from dpbook.figures.card import axes
from dpbook.planning import MODELS, Memory, PredictedStep, memory_per_rank
from tests.cases import refuses
from tests.figures.reading import bars, check_choices, parse, readable, rings, texts

STEPS = [PredictedStep(8, 4096, 0.1, 0.2, 0.3, 0.1), PredictedStep(1024, 4096, 0.1, 0.2, 0.5, 0.3)]
COLOURS = palette.COMPUTATION, palette.COMMUNICATION, palette.PARTIAL  # weights, gradients, optimizer


def lengths(root, colour):
    return [float(bar.get("width")) for bar in bars(root, colour)]


def capacity_at(root):
    """Position of the line of the capacity."""
    return float(bars(root, palette.EXPOSED)[0].get("x")) + 1


def place(share):
    """290 pixels for what fits, then 30 for each doubling."""
    return 90 + 290 * share if share <= 1 else 380 + 30 * log2(share)


def test_a_bar_is_as_long_as_its_bytes_and_in_doublings_beyond_the_capacity():
    """7,500,000,000 parameters on 64: 15, 15 and 90 GB, sharded by stage (Rajbhandari et al., 2020)."""
    stages = {f"stage {stage}": memory_per_rank(7_500_000_000, 64, stage) for stage in range(4)}
    root = parse(ch13.memory_bars(stages, 80e9, "One fits"))
    assert capacity_at(root) == place(1)
    kept = [(15, 15, 90), (15, 15, 90 / 64), (15, 15 / 64, 90 / 64), (15 / 64, 15 / 64, 90 / 64)]
    ends = [[place(sum(row[:part]) / 80) for part in range(4)] for row in kept]
    for part, colour in enumerate(COLOURS):
        expected = [row[part + 1] - row[part] for row in ends]
        assert lengths(root, colour) == pytest.approx(expected, abs=0.02)


def test_what_is_longer_than_the_axis_goes_on_in_an_arrow_and_has_its_number():
    kept = {"long": Memory(6e12, 0, 0), "short": Memory(4e9, 0, 0)}
    picture = ch13.memory_bars(kept, 80e9, "One fits")
    assert picture.svg.count("<polygon") == 1
    root = parse(picture)
    assert lengths(root, COLOURS[0]) == pytest.approx([place(64) - 90, 290 / 20])
    assert {"6,000.0 GB ✗ does not fit", "4.0 GB ✓ fits"} <= set(texts(root))
    assert readable(picture)


def test_memory_says_what_fits():
    kept = {"plain": Memory(1e9, 1e9, 6e9), "more": Memory(1e9, 0, 0, buckets=1e9, activations=1e9)}
    picture = ch13.memory_bars(kept, 4e9, "One fits")
    assert picture.alt == "One fits. Per rank, of 4 GB: plain: 8.0 GB; more: 3.0 GB."
    assert {"optimizer state", "copy in buckets", "activations"} <= set(texts(parse(picture)))
    assert readable(picture)


def test_shares_of_a_step_fill_its_bar():
    picture = ch13.scaling_bars(STEPS, "It falls")
    assert "8: 0.4 s, efficiency 75%; 1,024: 0.6 s, efficiency 50%" in picture.alt
    assert readable(picture)
    heights = [float(bar.get("height")) for bar in bars(parse(picture), palette.EXPOSED)]
    assert sorted(heights) == pytest.approx([200 / 4, 200 / 2])
    alone = ch13.scaling_bars([PredictedStep(1, 4096, 0.1, 0.2, 0, 0)], "Alone")
    assert "exposed communication" not in texts(parse(alone))


def test_the_memory_explorer_names_the_first_stage_that_fits():
    explorer = ch13.explore_memory()
    assert explorer.figure.alt.startswith("Llama-2 7B on 8 × H100 SXM: ZeRO-1 is enough")
    explorer.set(model="Llama-2 70B")
    assert "nothing fits" in explorer.figure.alt
    explorer.set(world="64")
    assert "ZeRO-3 is enough" in explorer.figure.alt


def test_it_says_from_how_many_gpus_on_a_stage_fits():
    """68,976,648,192 parameters: 141 GB hold 2 bytes of each, and 14 of each over 512 ranks but not over 256."""
    parameters = MODELS["Llama-2 70B"].parameters
    assert 2 * parameters + 14 * parameters / 512 <= 141e9 < 2 * parameters + 14 * parameters / 256
    assert 16 * parameters / 8 <= 141e9 < 16 * parameters / 4
    explorer = ch13.explore_memory()
    explorer.set(model="Llama-2 70B", accelerator="H200 SXM")
    ending = "plain: never fits; ZeRO-1: never fits; ZeRO-2: fits from 512 on; ZeRO-3: fits from 8 on."
    assert explorer.figure.alt.endswith(ending)


def test_one_is_on_the_curves_and_the_last_position_is_faint():
    explorer = ch13.explore_memory()
    assert "last position" not in texts(parse(explorer.figure))
    explorer.set(world="64")
    root = parse(explorer.figure)
    now = rings(root, palette.INK, palette.INK) + rings(root, palette.INK, palette.PAPER)
    before = rings(root, axes.GHOST, palette.PAPER)
    assert [len(now), len(before)] == [4, 4]
    (here,), (there,) = ({x for x, _ in places} for places in (now, before))
    assert here - there == pytest.approx((580 - 90) * 3 / 13, abs=0.1)  # 8 to 64, of 1 to 8,192
    heights = sorted(y for _, y in before)
    per_decade = (238 - 48) / 3.30103  # 1 GB to 2 TB
    assert heights[1] - heights[0] == pytest.approx(0.4625 * per_decade, abs=0.1)  # 16 to 5.5 bytes
    assert "last position" in texts(root)


def test_the_ghost_of_a_bar_is_the_last_share_of_the_last_gpu():
    explorer = ch13.explore_memory()
    first = parse(explorer.figure)
    explorer.set(accelerator="B200", model="Llama-2 70B")
    ghosts = [bar for bar in bars(parse(explorer.figure), "none") if float(bar.get("height")) > 20]
    kept = [sum(map(float, own)) for own in zip(*(lengths(first, colour) for colour in COLOURS), strict=True)]
    assert [float(bar.get("width")) for bar in ghosts] == pytest.approx(kept, abs=0.05)


def test_every_position_of_memory_is_readable_and_as_high_as_the_first():
    check_choices(ch13.explore_memory())


test_bad_input_is_named = refuses(
    (lambda: ch13.memory_bars({}, 1e9, "Title"), "memories"),
    (lambda: ch13.memory_bars({"a": Memory(1, 1, 1)}, 0, "Title"), "capacity"),
    (lambda: ch13.memory_bars({"a": Memory(1, 1, 1)}, 1, ""), "title"),
    (lambda: ch13.scaling_bars([], "Title"), "steps"),
)
