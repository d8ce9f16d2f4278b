"""Is every number rounded to the value that its format has nearest to it?"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core import InvalidArgument
from dpbook.replicas.inexact import FORMATS, bf16
from tests.cases import each

TORCH = {
    "bf16": (torch.int16, torch.bfloat16),
    "fp16": (torch.int16, torch.float16),
    "e4m3": (torch.int8, torch.float8_e4m3fn),
    "e5m2": (torch.int8, torch.float8_e5m2),
}
UNSCALED = {name: replace(format, scaled=False) for name, format in FORMATS.items()}
SCALED = [format for format in FORMATS.values() if format.scaled]
MESSAGES = st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=12).map(np.array)


def finite_values(name):
    """All finite values from 0 up, by their codes: torch's, whose bits are the code, or the integers."""
    if name == "int8":
        return np.arange(128.0)
    bits, dtype = TORCH[name]
    values = torch.arange(torch.iinfo(bits).max + 1).to(bits).view(dtype).double().numpy()
    return values[np.isfinite(values)]


@each("name", [*TORCH, "int8"])
def test_every_value_stays_and_what_lies_between_goes_to_the_nearest(name):
    values, format = finite_values(name), UNSCALED[name]
    below, above = values[:-1], values[1:]
    middle = (below + above) / 2
    even = np.where(np.arange(len(below)) % 2 == 0, below, above)  # the last digit of a value is that of its code
    for exact, expected in [
        (values, values),
        (middle, even),
        (np.nextafter(middle, -np.inf), below),
        (np.nextafter(middle, np.inf), above),
    ]:
        np.testing.assert_array_equal(format.round(exact), expected)
        np.testing.assert_array_equal(format.round(-exact), -expected)
    assert format.largest == values[-1]
    assert 2.0**format.lowest == values[1]


@each("name", ["bf16", "fp16"])
def test_what_is_too_large_becomes_infinite_as_in_torch(name):
    values = torch.tensor(finite_values(name)[-1] * np.array([1, 1 + 2.0**-12, 1 + 2.0**-8, 1.5]))
    expected = values.to(TORCH[name][1]).double().numpy()
    np.testing.assert_array_equal(UNSCALED[name].round(values.numpy()), expected)
    assert np.isinf(expected).any()


@each("name", ["e4m3", "e5m2", "int8"])
def test_eight_bits_saturate(name):
    largest = FORMATS[name].largest
    assert UNSCALED[name].round([largest * 1.5, -1e300, np.inf]).tolist() == [largest, -largest, largest]


def test_fp32_is_numpys():
    bits = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    values = np.concatenate([bits.view(np.float64), np.ldexp(1 + bits / 2.0**64, -np.arange(len(bits)) % 200)])
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(FORMATS["fp32"].round(values), expected)


@each("format", FORMATS.values())
def test_what_is_no_number_stays_none_and_leaves_a_message_no_scale(format):
    assert np.isnan(format.round([np.nan, 1.0])).tolist() == [True, format.scaled]
    assert np.isnan(format.round([np.inf, 1.0])).tolist() == [format.scaled, format.scaled]


@given(st.sampled_from(SCALED), MESSAGES, st.integers(-60, 60))
def test_a_scale_of_two_to_the_k_changes_nothing(format, values, k):
    values = values[np.abs(values) > 1e-30]
    np.testing.assert_array_equal(format.round(np.ldexp(values, k)), np.ldexp(format.round(values), k))


@given(st.sampled_from(SCALED), MESSAGES)
def test_what_is_rounded_once_stays_when_it_is_sent_on(format, values):
    rounded = format.round(values)
    np.testing.assert_array_equal(format.round(rounded), rounded)


@given(MESSAGES)
def test_an_integer_of_8_bits_is_off_by_a_127th_of_the_largest(values):
    error = np.abs(FORMATS["int8"].round(values) - values)
    assert error.max() <= np.abs(values).max() / 127


def test_each_message_has_its_own_scale():
    rounded = FORMATS["int8"].round([[1000.0, 1.0], [100.0, 1.0]])
    assert rounded.tolist() == [[1000.0, 0.0], [100.0, 1.0]]


def test_bad_input_is_named():
    with pytest.raises(InvalidArgument, match=r"^values "):
        bf16([1.0, np.inf])
