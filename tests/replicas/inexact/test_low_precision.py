"""Is every message of a collective rounded, where its schedule sends it, and nothing else?"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpbook import replicas
from dpbook.collectives import (
    ALGORITHMS,
    broadcast,
    gloo_ring,
    parameter_server,
    recursive_doubling,
    ring,
    tree,
    two_phase,
    verify,
)
from dpbook.core import InvalidArgument
from dpbook.replicas.inexact import FORMATS, LowPrecision, all_gather, all_reduce
from dpbook.replicas.method import gathering
from tests.cases import each

BF16, FP32 = FORMATS["bf16"], FORMATS["fp32"]
SCHEDULES = {**ALGORITHMS, "gloo_ring": gloo_ring, "two_phase": two_phase}
DATA = replicas.synthetic_task(examples=120)
MODEL = replicas.MLP(16, 3)


def normal(world, size=11):
    return np.random.default_rng(world).standard_normal((world, size))


@each("world", [1, 2, 3, 4, 5, 8])
def test_sums_that_a_format_holds_are_exact(world):
    rows = np.random.default_rng(world).integers(0, 2, (world, 11)).astype(float)  # at most 8: e5m2 has 3 digits
    for build in SCHEDULES.values():
        for wire in FORMATS.values():
            for accumulate in (None, FP32):
                sums = all_reduce(build(world), rows, wire, accumulate)
                np.testing.assert_array_equal(sums, np.tile(rows.sum(axis=0), (world, 1)))


@each("world", [3, 4, 5, 8])
def test_all_ranks_have_the_same_bits_which_the_format_holds(world):
    for build in SCHEDULES.values():
        for wire in FORMATS.values():
            for accumulate in (None, FP32):
                sums = all_reduce(build(world), normal(world), wire, accumulate)
                np.testing.assert_array_equal(sums, np.tile(sums[0], (world, 1)))
                if not wire.scaled:
                    np.testing.assert_array_equal(wire.round(sums), sums)
                assert np.abs(sums - normal(world).sum(axis=0)).max() > 0


@each(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@each("world", [2, 3, 4, 5, 8])
def test_a_ring_adds_as_torch_adds_along_it(name, dtype, world):
    """Chunk c starts on rank c and is added to by ranks c + 1, c + 2, and so on, in the narrow format."""
    rows = normal(world, size=world)  # one number to a chunk
    narrow = torch.from_numpy(rows).to(dtype)
    expected = []
    for chunk in range(world):
        total = narrow[chunk, chunk]
        for hop in range(1, world):
            total = total + narrow[(chunk + hop) % world, chunk]
        expected.append(float(total))
    np.testing.assert_array_equal(all_reduce(ring(world), FORMATS[name].round(rows), FORMATS[name])[0], expected)


@each(
    ("build", "world", "accumulate", "expected"),
    [
        (ring, 300, None, 256),  # 257 is none of bf16's values: the sum stays where it is
        (ring, 300, FP32, 256),  # the precision on a rank is no help: every sum is sent on
        (two_phase, 300, None, 256),
        (two_phase, 300, FP32, 300),  # no partial sum is sent
        (parameter_server, 300, None, 256),
        (parameter_server, 300, FP32, 300),  # one message to a sum
        (tree, 300, None, 300),
        (recursive_doubling, 512, None, 512),
    ],
)
def test_ones_in_bf16(build, world, accumulate, expected):
    size = 2 if build is not ring else world
    assert np.unique(all_reduce(build(world), np.ones((world, size)), BF16, accumulate)) == expected


def error(build, wire, world):
    rows = np.random.default_rng(0).standard_normal((world, 32 * world))
    total = rows.sum(axis=0)
    return np.linalg.norm(all_reduce(build(world), rows, wire, FP32)[0] - total) / np.linalg.norm(total)


@each("wire", [BF16, replace(FORMATS["int8"], block=32)])
def test_in_two_phases_the_error_does_not_grow_with_the_ranks_and_along_a_ring_it_does(wire):
    assert error(two_phase, wire, 64) < 1.1 * error(two_phase, wire, 4)
    assert error(ring, wire, 64) > 3 * error(ring, wire, 4)


def test_every_block_of_a_message_has_a_scale_of_its_own():
    wire = replace(FORMATS["int8"], block=2)
    rows = np.array([[1.0, 0.5, 1e6, 2.0, 3.0]])
    assert all_reduce(ring(1), rows, wire).tolist() == wire.round(rows).tolist()
    assert wire.round(rows).tolist() == [[1.0, 0.5, 999424.0, 0.0, 3.0]]
    assert replace(wire, block=None).round(rows).tolist() == [[0.0, 0.0, 999424.0, 0.0, 0.0]]


def test_ones_that_are_gathered_are_added_without_loss():
    received = all_gather(np.ones((300, 1)), BF16)
    assert received.shape == (300, 300, 1)
    assert np.unique(received) == 1


@each("world", [3, 4, 5, 8])
def test_a_ring_does_not_care_in_what_a_rank_adds_and_a_server_does(world):
    rows = normal(world, 200)
    np.testing.assert_array_equal(*(all_reduce(ring(world), rows, BF16, accumulate) for accumulate in (None, FP32)))
    narrow, wide = (all_reduce(parameter_server(world), rows, BF16, accumulate) for accumulate in (None, FP32))
    error = [np.linalg.norm(sums - rows.sum(axis=0)) for sums in (narrow, wide)]
    assert error[1] < error[0]


@each("world", [2, 3, 5])
def test_gathered_rows_are_rounded_once(world):
    for wire in FORMATS.values():
        rows = normal(world)
        np.testing.assert_array_equal(all_gather(rows, wire), np.tile(wire.round(rows), (world, 1, 1)))


@each("world", [1, 2, 3, 5])
def test_the_ring_that_gathers_keeps_its_promise(world):
    verify(gathering(tuple(range(world))))


@each(
    ("world", "expected"),
    [
        (2, [18, 18]),  # two messages of 5 integers and a scale
        (3, [30, 29, 29]),  # chunks of 4, 3 and 3, four messages
        (4, [39, 40, 39, 38]),
        (5, [48] * 5),
    ],
)
def test_a_message_of_8_bits_counts_its_scale(world, expected):
    model, data = replicas.Linear(9), replicas.synthetic_task(examples=60, inputs=9)
    run = replicas.train(model, data, world, method=LowPrecision("int8"), steps=2)
    assert run.sent.tolist() == [expected] * 2


def test_an_empty_chunk_has_no_scale():
    run = replicas.train(replicas.Linear(2), replicas.synthetic_task(40, 2), 4, method=LowPrecision("int8"), steps=1)
    assert run.sent.sum() == 3 * 6 * (1 + 4)  # each of 3 numbers travels 6 times; the fourth chunk is empty


@each("world", [3, 4, 5, 8])
@each("wire", FORMATS)
def test_replicas_stay_equal(world, wire):
    run = replicas.train(MODEL, DATA, world, method=LowPrecision(wire), steps=3)
    assert run.drift == 0
    assert 0 < run.gap < 0.1


def test_an_fp32_wire_under_fp32_gradients_is_the_exact_loop():
    data = replicas.synthetic_task(examples=120, dtype=np.float32)
    exact, wired = (replicas.train(MODEL, data, 5, method=m, steps=3) for m in (replicas.Exact(), LowPrecision("fp32")))
    np.testing.assert_array_equal(exact.params, wired.params)
    np.testing.assert_array_equal(exact.sent, wired.sent)


def test_without_a_scale_small_gradients_vanish():
    unscaled = replace(FORMATS["e4m3"], scaled=False)
    data = replicas.synthetic_task(examples=120)[0], np.full((120, 1), 1e-6)
    start = np.zeros((4, MODEL.size))
    still, moved = (
        replicas.train(MODEL, data, 4, method=LowPrecision(wire), steps=1, start=start)
        for wire in (unscaled, FORMATS["e4m3"])
    )
    np.testing.assert_array_equal(still.params, start)
    assert np.abs(moved.params).max() > 0


@each("wire", ["fp4", 8])
def test_no_format_is_named(wire):
    with pytest.raises(InvalidArgument, match=r"^wire "):
        LowPrecision(wire)


@each("all_reduce", [lambda rows: rows, ring(3), broadcast(2)])
def test_what_has_no_messages_of_an_all_reduce_to_round_is_named(all_reduce):
    with pytest.raises(InvalidArgument, match="all_reduce"):
        replicas.train(MODEL, DATA, 2, all_reduce, method=LowPrecision("bf16"), steps=1)
