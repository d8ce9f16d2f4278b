"""Do the plots of measured steps show and say what they are given?"""

from dpbook.book import ch10
from dpbook.core import palette
from dpbook.overlap import StepRecord
from tests.cases import each, refuses
from tests.figures.reading import check_plot, shows

EMULATED = {"naive": (30.0, 31.0, 35.0), "local": (10.0, 10.0, 11.0)}
REAL = {"naive": (29.0, 33.0, 36.0), "local": (10.0, 12.0, 13.0)}
RECORD = StepRecord(EMULATED, REAL, {1: (20.0, 21.0, 22.0)}, {1: (20.0, 25.0, 26.0)}, {})
PLOTS = {
    "prediction": lambda: ch10.step_prediction(RECORD, "It is near"),
    "links": lambda: ch10.step_bars({"emulated": EMULATED, "real": REAL}, "They agree"),
    "one link": lambda: ch10.step_bars({"emulated": EMULATED}, "One"),
}


@each("draw", PLOTS.values())
def test_a_plot_is_a_small_picture_and_leaves_no_settings(draw):
    check_plot(draw)


def test_medians_are_reported():
    assert PLOTS["prediction"]().alt == "It is near. Medians of 3 steps: 1 MiB: 21 ms predicted, 25 measured."
    assert "emulated: naive 31 ms, local 10 ms; real: naive 33 ms, local 12 ms" in PLOTS["links"]().alt


def test_each_link_has_its_colour():
    assert shows(PLOTS["links"](), palette.COMMUNICATION)
    assert shows(PLOTS["links"](), palette.COMPUTATION)
    assert not shows(PLOTS["one link"](), palette.COMPUTATION)


test_bad_arguments_are_named = refuses(
    (lambda: ch10.step_prediction(RECORD, " "), "title"),
)
