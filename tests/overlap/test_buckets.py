"""Is a plan equal to that of torch's DDP for the same tensors, and is a plan made by hand checked?"""

import dataclasses
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from dpbook import planning
from dpbook.book.ch08 import cnn, gpt, mlp
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import (
    CAP,
    FIRST_CAP,
    ITEMSIZE,
    MIB,
    Plan,
    Tensor,
    first_step_plan,
    flat_plan,
    per_tensor_plan,
    plan,
)
from tests.cases import each
from tests.overlap import shapes

MODELS = {
    "cnn": cnn(),
    "mlp": mlp(),
    "no bias": mlp(bias=False),
    "gpt": gpt(),
    "resnet": shapes.resnet_like(),
    "llama": planning.MODELS["Llama-2 7B"].tensors(),
}
CAPS = [0, 1, 1000, MIB, 5 * MIB, CAP, 100 * MIB, 640 * MIB]


def as_torch(tensors):
    return [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in tensors]


def oracle(tensors, limits, order=None):
    """Return the buckets that torch assigns, in the order of the parameters or in a ready order."""
    found = as_torch(tensors)
    ready = [] if order is None else list(order)
    groups, _ = dist._compute_bucket_assignment_by_size(
        found if order is None else [found[i] for i in ready], limits, [False] * len(found), ready
    )
    return [tuple(group) for group in groups]


def reverse(tensors):
    return range(len(tensors) - 1, -1, -1)


# The same as torch


@each("first", [FIRST_CAP, None])
@each("cap", CAPS)
@each("name", MODELS)
def test_the_plan_is_torchs_for_real_models(name, cap, first):
    tensors = MODELS[name]
    limits = [cap if first is None else first, cap]
    assert list(plan(tensors, cap, first).groups) == oracle(tensors, limits, reverse(tensors))


@given(shapes.tensors(dtypes=("float32",)), st.integers(0, 2000), st.integers(0, 2000), st.randoms())
def test_the_plan_is_torchs_in_any_ready_order(tensors, cap, first, random):
    order = random.sample(range(len(tensors)), len(tensors))
    assert list(plan(tensors, cap, first, order).groups) == oracle(tensors, [first, cap], order)


@given(shapes.tensors(), st.integers(0, 2000), st.integers(0, 2000), st.randoms())
def test_of_several_dtypes_it_is_torchs_too_but_for_the_order_of_what_never_closed(tensors, cap, first, random):
    order = random.sample(range(len(tensors)), len(tensors))
    ours, theirs = list(plan(tensors, cap, first, order).groups), oracle(tensors, [first, cap], order)
    kinds = len({t.dtype for t in tensors})
    closed = max(len(ours) - kinds, 0)
    assert ours[:closed] == theirs[:closed]
    assert sorted(ours) == sorted(theirs)


@given(shapes.tensors())
def test_the_first_step_is_torchs(tensors):
    assert list(first_step_plan(tensors).groups) == oracle(tensors, [sys.maxsize])[::-1]


@given(shapes.tensors(), st.integers(0, 2000), st.integers(0, 2000))
def test_the_first_step_is_torchs_where_unused_parameters_are_looked_for(tensors, cap, first):
    assert list(first_step_plan(tensors, True, cap, first).groups) == oracle(tensors, [first, cap])[::-1]


def test_tensors_on_two_devices_never_share_a_bucket():
    tensors = [Tensor(f"t{k}", 4, device=f"cuda:{k % 2}") for k in range(8)]
    assert plan(tensors, cap=32, first=16).groups == ((7,), (6,), (5, 3), (4, 2), (1,), (0,))


def test_every_dtype_has_torchs_itemsize():
    assert {name: getattr(torch, name).itemsize for name in ITEMSIZE} == ITEMSIZE


# What the rule means


def test_what_never_closes_goes_out_in_the_order_of_its_last_member():
    tensors = [Tensor("a", 1), Tensor("b", 1, "float64"), Tensor("c", 1)]
    assert plan(tensors).groups == ((1,), (2, 0))


def test_a_bucket_may_exceed_the_cap_and_a_larger_tensor_closes_its_own():
    tensors = [Tensor("large", 1000, "int8"), Tensor("b", 60, "int8"), Tensor("c", 60, "int8")]
    assert plan(tensors, cap=100, first=None).nbytes.tolist() == [120, 1000]


@given(shapes.tensors(), st.integers(0, 2000), st.integers(0, 2000), st.randoms())
def test_a_plan_sends_every_byte_once(tensors, cap, first, random):
    made = plan(tensors, cap, first, random.sample(range(len(tensors)), len(tensors)))
    assert sorted(i for group in made.groups for i in group) == list(range(len(tensors)))
    assert made.total_bytes == sum(shapes.DTYPES[t.dtype] * t.shape[0] for t in tensors)
    assert made.calls == len(made.buckets) == len(made.nbytes)


@given(shapes.tensors(), st.integers(0, 2000))
def test_a_buckets_layout_has_no_gaps(tensors, cap):
    made = plan(tensors, cap, None)
    for bucket in made.buckets:
        assert [*np.cumsum([0, *(tensors[i].elements for i in bucket.tensors)])] == [*bucket.offsets, bucket.elements]
        assert bucket.nbytes == bucket.elements * ITEMSIZE[bucket.dtype]
    for index, (b, offset) in enumerate(made.places):
        assert made.buckets[b].offsets[made.buckets[b].tensors.index(index)] == offset


def test_flat_is_one_bucket_and_per_tensor_as_many_as_there_are():
    assert flat_plan(cnn()).groups == ((7, 6, 5, 4, 3, 2, 1, 0),)
    assert per_tensor_plan(cnn()).groups == tuple((k,) for k in range(7, -1, -1))


# What the book claims


def test_the_cnn_sends_194_506_680_bytes_in_235_steps_however_it_is_cut():
    each, flat = per_tensor_plan(cnn()), flat_plan(cnn())
    assert sum(t.elements for t in cnn()) == 206_922
    assert (235 * each.calls, 235 * flat.calls) == (1880, 235)
    assert each.total_bytes / each.calls == 103_461
    assert flat.nbytes.tolist() == [827_688]
    assert 235 * each.total_bytes == 235 * flat.total_bytes == 194_506_680


@pytest.mark.parametrize("bias", [True, False])
def test_the_slider_that_does_nothing(bias):
    tensors = mlp(bias=bias)
    assert {plan(tensors, round(mb * 1e6)).calls for mb in np.linspace(1, 60, 119)} == {40}
    for unit in (10**6, MIB):
        assert [plan(tensors, mb * unit).calls for mb in (5, 25, 100, 640)] == [40, 40, 21, 5]
        # A first bucket with the same limit, as torch has it today once it is given a cap:
        assert [plan(tensors, mb * unit, None).calls for mb in (5, 25, 100, 640)] == [40, 40, 20, 4]
    assert f"{sum(t.nbytes for t in tensors) / 1e9:.2f}" == ("2.69" if bias else "2.68")


def test_gpt_2_small_has_the_published_number_of_tensors_and_parameters():
    assert (len(gpt()), sum(t.elements for t in gpt())) == (148, 124_439_808)


# A plan by hand


def test_a_plan_by_hand_is_kept_as_it_is():
    made = Plan(cnn(), [[7, 6], [5, 4, 3, 2], [0, 1]])
    assert made.groups == ((7, 6), (5, 4, 3, 2), (0, 1))
    assert repr(made).startswith("Plan: 8 tensors in 3 buckets of 640 to 8")


MIXED = (Tensor("a", 1), Tensor("b", 1, "float16"), Tensor("c", 1))


@each(
    ("tensors", "groups", "message"),
    [
        (cnn(), [[0, 1, 2, 3], [5, 6, 7]], r"missing: 4 \(fc1.weight\)"),
        (cnn(), [range(8), [3]], r"groups\[1\] must be without tensor 3, which is in groups\[0\]"),
        (cnn(), [range(8), []], r"groups\[1\] must be one tensor or more"),
        (cnn(), [[*range(8), 8]], "from 0 to 7, got 8"),
        (cnn(), [[*range(7), 7.0]], "a tensor index"),
        (cnn(), 3, "groups must be a sequence of groups"),
        (cnn(), [3], "groups must be a sequence of groups"),
        (MIXED, [[0, 1], [2]], "one dtype on one device, not float16 on cpu and float32 on cpu"),
        ((MIXED[0], dataclasses.replace(MIXED[2], device="cuda:0")), [[0, 1]], "float32 on cpu and float32 on cuda:0"),
    ],
)
def test_a_plan_by_hand_that_could_not_run_is_refused(tensors, groups, message):
    with pytest.raises(InvalidArgument, match=message):
        Plan(tensors, groups)


@each(
    ("call", "message"),
    [
        (lambda: plan([]), "tensors must be a sequence of one or more"),
        (lambda: plan([1]), r"tensors\[0\] must be a Tensor"),
        (lambda: plan(cnn(), cap=-1), "cap must be an integer of at least 0"),
        (lambda: plan(cnn(), first=0.5), "first must be an integer"),
        (lambda: plan(cnn(), order=[0, 1, 2]), "each index of the 8 tensors once"),
        (lambda: plan(cnn(), order=[0] * 8), "each index of the 8 tensors once"),
        (lambda: plan(cnn(), order=range(1, 9)), r"order\[7\] must be an integer from 0 to 7"),
        (lambda: Tensor("a", (2, -1)), "shape of a must be an integer of at least 0"),
        (lambda: Tensor("a", "23"), "shape of a must be an integer"),
        (lambda: Tensor("a", 1, "float31"), "dtype of a must be one of"),
        (lambda: mlp(0), "depth must be"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
