"""Is the shipped data what its README says?"""

import hashlib
import re
from importlib.resources import files

import numpy as np
import pytest

from dpbook.core.errors import InvalidArgument
from dpbook.replicas import digits, split, synthetic_task
from tests.cases import each

FOLDER = files("dpbook").joinpath("data", "digits")


def test_file_has_the_hash_in_its_readme():
    (stated,) = re.findall(r"\b[0-9a-f]{64}\b", FOLDER.joinpath("README.md").read_text(encoding="utf-8"))
    assert hashlib.sha256(FOLDER.joinpath("digits.csv.gz").read_bytes()).hexdigest() == stated


def test_digits_have_the_published_class_counts():
    images, labels = digits()
    assert images.shape == (1797, 64)
    assert (images.min(), images.max()) == (0, 1)
    # The class distribution of the testing set as the source states it.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_in_float32_are_exact():
    # sixteenths need four bits
    np.testing.assert_array_equal(digits(np.float32)[0], digits()[0])


def test_split_is_disjoint_exhaustive_and_has_every_digit_on_both_sides():
    images, labels = digits()
    (train_x, train_y), (test_x, test_y) = split(images, labels)
    assert (len(train_x), len(test_x)) == (1440, 357)
    everything = np.column_stack([np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])])
    expected = np.column_stack([images, labels])
    np.testing.assert_array_equal(np.unique(everything, axis=0), np.unique(expected, axis=0))
    assert np.bincount(test_y).min() >= 30


def test_synthetic_task_draws_inputs_then_weights_then_noise():
    x, y = synthetic_task()
    rng = np.random.default_rng(7)
    expected_x, weights, noise = rng.standard_normal((4096, 16)), rng.standard_normal(16), rng.standard_normal(4096)
    np.testing.assert_array_equal(x, expected_x)
    # One dot product of 16 terms below tanh, whose slope is at most 1.
    np.testing.assert_allclose(y[:, 0], np.tanh(expected_x @ weights) + 0.05 * noise, rtol=0, atol=1e-14)


def test_synthetic_task_keeps_the_dtype():
    x, y = synthetic_task(10, 3, dtype=np.float32)
    assert (x.dtype, y.dtype, x.shape, y.shape) == (np.float32, np.float32, (10, 3), (10, 1))


@each(
    ("name", "call"),
    [
        ("images", lambda: split(np.zeros((1440, 64)), np.zeros(1440))),
        ("labels", lambda: split(np.zeros((1797, 64)), np.zeros(1796))),
        ("images", lambda: split(1, 2)),
        ("examples", lambda: synthetic_task(0)),
        ("inputs", lambda: synthetic_task(4, 0)),
        ("noise", lambda: synthetic_task(noise=-1)),
        ("noise", lambda: synthetic_task(noise=float("nan"))),
        ("seed", lambda: synthetic_task(seed=-1)),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
