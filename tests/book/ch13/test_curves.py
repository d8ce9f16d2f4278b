"""Does one constant, fixed on one curve, describe the curves of other models and of another machine?"""

import numpy as np
import pytest

from dpbook.book import ch13
from dpbook.book.ch13 import published as curves
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
