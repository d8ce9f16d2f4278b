"""How many tokens hide the sync, and does the model's size matter?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch07 import tokens_to_hide


def test_the_printed_numbers_are_those_of_half_of_989_teraflops():
    assert round(tokens_to_hide(989e12 / 2, 400e9)) == 1236
    assert round(tokens_to_hide(989e12 / 2, 50e9)) == 9890
    assert round(tokens_to_hide(989e12 / 2, 400e9, recompute=True)) == 824


@given(st.floats(1e6, 1e12), st.floats(1e12, 1e16), st.floats(1e9, 1e12))
def test_at_that_number_backward_and_ring_take_equally_long_whatever_the_model(parameters, flops, bandwidth):
    backward = 4 * parameters * tokens_to_hide(flops, bandwidth) / flops
    assert backward == pytest.approx(2 * 2 * parameters / bandwidth, rel=1e-12)


def test_every_parameter_is_sent_and_few_compute():
    """671 billion parameters, 37 of them active: seconds of one backward and one ring on very many ranks."""
    tokens = tokens_to_hide(989e12 / 2, 400e9, per_active=671 / 37)
    assert 4 * 37e9 * tokens / (989e12 / 2) == pytest.approx(4 * 671e9 / 400e9)
