"""Is the bfloat16 that NumPy lacks the one that torch has?"""

import numpy as np
import torch

from dpbook.book.ch02 import bf16, sum_in_bf16
from tests.cases import refuses


def test_every_kind_of_float32_is_rounded_as_torch_rounds_it():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[np.abs(values) < 3e38]  # the rest is not finite, or rounds to infinity
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(bf16(values), expected)


def test_the_sum_is_torchs_addition_by_addition():
    buffers = np.random.default_rng(1).standard_normal((5, 1000)).astype(np.float32)
    total, *others = torch.from_numpy(buffers).to(torch.bfloat16)
    for own in others:
        total = total + own
    sums = sum_in_bf16(buffers)
    assert sums.dtype == np.float32
    np.testing.assert_array_equal(sums, np.tile(total.float().numpy(), (5, 1)))


test_bad_input_is_named = refuses(
    (lambda: bf16([1, np.nan]), "values"),
    (lambda: sum_in_bf16(np.ones((2, 2))), "buffers"),
)
