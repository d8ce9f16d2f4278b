"""How many tokens hide the sync, and does the model's size matter?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch07 import tokens_to_hide
from tests.cases import refuses


def test_the_printed_numbers_are_those_of_half_of_989_teraflops():
    assert round(tokens_to_hide(989e12 / 2, 400e9)) == 1236
    assert round(tokens_to_hide(989e12 / 2, 50e9)) == 9890
    assert round(tokens_to_hide(989e12 / 2, 400e9, recompute=True)) == 824


@given(st.floats(1e6, 1e12), st.integers(1, 4096), st.sampled_from([1, 2, 4]))
def test_at_that_number_backward_and_ring_take_equally_long_whatever_the_model(parameters, world, itemsize):
    flops, bandwidth = 3e14, 5e10
    tokens = tokens_to_hide(flops, bandwidth, itemsize, world)
    backward = 4 * parameters * tokens / flops
    ring = 2 * (world - 1) / world * itemsize * parameters / bandwidth
    assert backward == pytest.approx(ring, rel=1e-12)


def test_every_parameter_is_sent_and_few_compute():
    """671 billion parameters, 37 of them active: seconds of one backward and one ring on very many ranks."""
    tokens = tokens_to_hide(989e12 / 2, 400e9, per_active=671 / 37)
    assert 4 * 37e9 * tokens / (989e12 / 2) == pytest.approx(4 * 671e9 / 400e9)


test_bad_arguments_are_named = refuses(
    (lambda: tokens_to_hide(0, 1), "flops_per_second"),
    (lambda: tokens_to_hide(1, 0), "bandwidth"),
    (lambda: tokens_to_hide(1, 1, 0), "itemsize"),
    (lambda: tokens_to_hide(1, 1, 2, 0), "world"),
    (lambda: tokens_to_hide(1, 1, 2, 2, 0.5), "per_active"),
)
