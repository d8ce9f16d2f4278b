"""Does one constant, fixed on one curve, describe the curves of other models and of another machine?"""

import numpy as np
import pytest

from dpbook.book import ch13
from dpbook.book.ch13 import published as curves
from dpbook.planning import Normal
from tests.cases import each

CURVES = ch13.scaling_curves()
CONTENTION = 0.5
FIXED = "7B, H100"


def largest(name, contention):
    return max(map(abs, ch13.curve_errors(CURVES[name], contention)))


def test_the_first_point_of_a_curve_is_met():
    for points in CURVES.values():
        (error,) = ch13.curve_errors([points[0], points[0]], CONTENTION)
        assert abs(error) < 1e-9


def test_the_constant_is_the_one_that_fits_the_curve_on_which_it_is_fixed():
    assert min(np.arange(0, 2, 0.1), key=lambda c: largest(FIXED, c)) == pytest.approx(CONTENTION)


@each("name", [name for name in CURVES if name != FIXED])
def test_it_brings_every_other_curve_nearer(name):
    assert largest(name, CONTENTION) < min(0.041, largest(name, 0))


@each("wires", [0.6, 1.0])
@each("itemsize", [2, 4])
def test_what_the_source_does_not_give_hardly_matters(wires, itemsize, monkeypatch):
    before = {name: ch13.curve_errors(points, CONTENTION) for name, points in CURVES.items()}
    monkeypatch.setattr(curves, "WIRES", wires)
    monkeypatch.setattr(curves, "ITEMSIZE", itemsize)
    for name, points in CURVES.items():
        np.testing.assert_allclose(ch13.curve_errors(points, CONTENTION), before[name], atol=0.012)


def errors_with_stragglers(points, contention, deviation):
    """Errors if each step also waits for the slowest of N ranks, whose times have this relative ``deviation``."""
    waits = [Normal(1, deviation).arrival(point.gpus, point.gpus) if deviation else 1 for point in points]
    first = points[0]._replace(rate=points[0].rate * waits[0])
    free = ch13.curve_errors([first, *points[1:]], contention)
    return [(1 + error) / wait - 1 for error, wait in zip(free, waits[1:], strict=True)]


def scatter(contention, deviation):
    """Root of the mean square over all predicted points."""
    errors = [errors_with_stragglers(points, contention, deviation) for points in CURVES.values()]
    return float(np.sqrt(np.mean(np.square(np.concatenate(errors)))))


def test_stragglers_instead_of_contention_miss_small_models():
    """They cost each model the same share. But small models lose most, and they hide most."""
    deviation = min(np.arange(0, 0.1, 0.01), key=lambda s: max(map(abs, errors_with_stragglers(CURVES[FIXED], 0, s))))
    assert deviation == pytest.approx(0.04)
    assert max(errors_with_stragglers(CURVES["1B, H100"], 0, deviation)) > 0.07
    assert scatter(0, deviation) > 1.5 * scatter(CONTENTION, 0)


def test_beside_contention_the_curves_do_not_determine_stragglers():
    """Pairs of constants from 0 to 3 % describe them as well as each other, to a fifth of a per cent."""
    found = [scatter(*pair) for pair in ((0.6, 0), (0.5, 0), (0.5, 0.01), (0.4, 0.02), (0.3, 0.03))]
    assert max(found) - min(found) < 0.002
