"""Does a measured step count the right updates and take their medians?"""

import pytest

from dpbook.runs.forecast import NoForecast
from dpbook.runs.forecast.measured_step import WARMUP_UPDATES, read_step

MODEL = {
    "kind": "model", "device": "cuda", "world": 1, "units": [], "frozen": {},
    "sharded": False, "wrapped": False, "wrapper": None, "own_hook": False, "buffers": 0, "cap": None, "first": None,
    "tensors": [{"name": n, "shape": [4], "dtype": "float32", "device": "cuda:0"} for n in ("a", "b")],
}  # fmt: skip


def update(backward, *, other=1.0, order=(1, 0), emulated=False):
    """Forward takes 2, the optimizer 3; of the backward the first gradient takes a quarter."""
    begun = other + 2
    ready = [(order[0], begun + backward / 4), *((number, begun + backward) for number in order[1:])]
    end = begun + backward
    marks = [("begun", 0), ("forward", other), ("backward", begun), *ready, ("returned", end), ("stepped", end + 3)]
    return {
        "kind": "update",
        "marks": marks,
        "spans": [],
        "synced": [True],
        "emulated": emulated,
        "own_hook": False,
        "detailed": True,
    }


def journal(*backwards, **options):
    return [MODEL, *[update(100)] * WARMUP_UPDATES, *(update(each, **options) for each in backwards)]


def test_medians_without_the_first_updates():
    step = read_step([journal(4, 8, 40)])
    assert (step.other, step.forward, step.backward, step.after) == pytest.approx((1, 2, 8, 3))
    assert (step.alone, step.updates) == (pytest.approx(14), 3)
    assert [layer.name for layer in step.layers] == ["a", "b"]  # b's gradient comes first
    assert [layer.backward for layer in step.layers] == pytest.approx([6, 2])


def test_medians_add_up_to_that_of_whole_updates():
    """Each part is longest in another update; a step is as long as a step was."""
    step = read_step(
        [[MODEL, *[update(1)] * WARMUP_UPDATES, update(4, other=9), update(8, other=1), update(6, other=1)]]
    )
    assert step.alone == pytest.approx(14)


def test_an_update_counts_as_on_the_rank_that_took_longest():
    step = read_step([journal(4, 9, 4), journal(8, 4, 8)])
    assert step.backward == pytest.approx(8)


def test_updates_over_the_link_are_kept_apart():
    carried = MODEL | {"wrapped": True, "world": 2}
    ranks = [
        [
            carried,
            *[update(100)] * WARMUP_UPDATES,
            update(8),
            update(seconds, emulated=True),
            update(8),
            update(90, emulated=True),
        ]
        for seconds in (20, 24)
    ]
    step = read_step([each[:-1] for each in ranks])
    assert (step.updates, step.backward) == (2, pytest.approx(8))
    assert step.emulated_seconds == 1 + 2 + 22 + 3
    assert read_step(ranks).emulated_seconds == 1 + 2 + (22 + 90) / 2 + 3


def test_what_the_slowest_rank_really_waited_for_is_reported():
    """Its sums arrive 5 after its last gradient; no rank could go on before."""
    late = update(8)
    late["marks"][-2:] = [("arrived", 16), ("returned", 16), ("stepped", 19)]
    step = read_step([[MODEL | {"world": 2}, *[update(100)] * WARMUP_UPDATES, late]] * 2)
    assert (step.alone, step.waited) == (pytest.approx(14), pytest.approx(5))


@pytest.mark.parametrize("change", [{"wrapped": False}, {"wrapped": True, "own_hook": True}])
def test_what_ddp_did_not_carry_is_compared_with_nothing(change):
    assert (
        read_step(
            [[MODEL | change, *[update(9)] * WARMUP_UPDATES, update(8), update(20, emulated=True)]]
        ).emulated_seconds
        is None
    )


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no update of an optimizer was seen"),
        ([MODEL, *[update(1)] * WARMUP_UPDATES], "made 3 updates"),
        (journal(4)[:-1] + [update(4), update(4, order=(1,))], "differ in which gradients"),
        (journal(4)[:-1] + [update(4), update(4, order=(1,), emulated=True)], "differ in which gradients"),
        ([MODEL | {"sharded": True}], "--stages 3"),
    ],
)
def test_what_cannot_be_forecast_says_why(events, message):
    with pytest.raises(NoForecast, match=message):
        read_step([events])


def test_what_is_odd_about_a_script_is_reported():
    odd = MODEL | {"wrapped": True, "own_hook": True, "buffers": 2}
    events = [odd, *[update(100)] * WARMUP_UPDATES, *(update(each, other=90, order=(1,)) for each in (4, 400, 4, 400))]
    notes = "\n".join(read_step([events]).notes)
    for word in ("no gradient for a:", "outside of forward", "updates differ", "communication hook", "2 buffers"):
        assert word in notes
