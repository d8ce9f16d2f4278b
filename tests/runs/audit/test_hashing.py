"""Do hashes tell tensors apart that differ, however little, and only those?"""

import torch

from dpbook.runs.watching.hashing import _on_device, digests, rows
from tests.cases import each


def digest(tensor):
    return digests({"x": tensor})["x"]


@each("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
@each("size", [1, 3, 8, 1001])
def test_one_element_changes_it(dtype, size):
    x = (torch.arange(size) % 2).to(dtype)
    for place in {0, size // 2, size - 1}:
        y = x.clone()
        y[place] = 1 - y[place].to(torch.float32)
        assert digest(y) != digest(x)


def test_a_step_up_and_a_step_down_do_not_cancel():
    x = torch.ones(1000)
    y = x.clone()
    y[3], y[5] = torch.nextafter(x[3], torch.tensor(2.0)), torch.nextafter(x[5], torch.tensor(0.0))
    assert digest(y) != digest(x)


def test_the_same_values_elsewhere_in_memory_have_the_same_hash():
    x = torch.randn(1001)
    padded = torch.cat([torch.zeros(3), x])
    assert digest(padded[3:]) == digest(x) == digest(torch.stack([x, x], 1)[:, 0])


def test_a_sparse_tensor_has_none():
    assert digests({"x": torch.eye(3).to_sparse()}) == {}


def test_a_row_is_known_by_all_tensors_of_the_batch():
    words, mask = torch.arange(12).view(3, 4), torch.ones(3, 4)
    other = mask.clone()
    other[1, 2] = 0
    first, second = rows([words, mask]), rows([words, other])
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True]
    assert rows([words[1:2], mask[1:2]]) == first[1:2]
    assert rows([torch.tensor(3.0)]) == rows([torch.empty(0, 3)]) == []


@each("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
@each("size", [1, 9, 1001])
def test_what_a_device_would_compute_tells_elements_apart_too(dtype, size):
    x = (torch.arange(size) % 2).to(dtype)
    hashes = {_on_device(x)} | {_on_device(torch.where(torch.arange(size) == k, 1 - x, x)) for k in (0, size - 1)}
    assert len(hashes) == len({0, size - 1}) + 1
