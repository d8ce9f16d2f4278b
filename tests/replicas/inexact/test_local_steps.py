"""Local SGD and DiLoCo: exact where they must be, at rest where theory says, as rare on the wire as they promise."""

from functools import partial

import numpy as np
import pytest
import torch

from dpbook import replicas
from dpbook.core import InvalidArgument
from dpbook.replicas.inexact import DiLoCo, LocalSGD, Parabolas, local_fixed_point
from tests.cases import each

DATA = replicas.synthetic_task(examples=120)
MODEL = replicas.MLP(16, 3)
train = partial(replicas.train, MODEL, DATA, lr=0.05, global_batch=60, meters=("drift", "gap"))
ONE_STEP = (LocalSGD(1), DiLoCo(1, 1, 0))
MOMENTUM = partial(replicas.Momentum, momentum=0.5)
DYADIC = np.array([1.0, 0.5, 0.25, 2.0]), np.array([1.0, -2.0, 3.0, 0.5])  # sums and products of theirs are exact


@pytest.mark.parametrize("method", ONE_STEP, ids=repr)
def test_one_local_step_is_the_exact_loop_bit_for_bit_where_the_arithmetic_is_exact(method):
    exact, local = (
        replicas.train(Parabolas(4), DYADIC, 4, method=m, lr=0.25, steps=6) for m in (replicas.Exact(), method)
    )
    assert np.array_equal(local.params, exact.params)
    assert exact.params[0] != 4
    assert local.drift == 0


@each("method", ONE_STEP)
@each("world", [3, 4, 5])
@each("optimizer", [replicas.SGD, MOMENTUM])
def test_one_local_step_is_the_exact_loop_within_rounding(world, optimizer, method):
    sizes = [60 - 4 * (world - 1)] + [4] * (world - 1)
    exact, local = (
        train(world, steps=8, sizes=sizes, optimizer=optimizer, method=m) for m in (replicas.Exact(), method)
    )
    # Parameters stay below 1: rounding leaves some 2⁻⁵³ of that per operation, a dozen operations a step.
    assert np.abs(local.params - exact.params).max() < 8 * 16 * 2**-53
    assert np.abs(exact.params).max() < 1


def test_one_local_step_of_adam_is_not_the_exact_loop():
    exact, local = (train(4, steps=8, optimizer=replicas.Adam, method=m) for m in (replicas.Exact(), LocalSGD(1)))
    assert np.abs(local.params - exact.params).max() > 1e-3


def test_an_average_comes_once_a_period_and_is_that_of_ranks_that_trained_alone():
    run = train(3, steps=8, method=LocalSGD(4))
    assert (run.drifts > 0).tolist() == [True, True, True, False] * 2
    assert np.isnan(run.gaps).all()
    ring = 2 * (3 - 1) * MODEL.size * 8  # bytes of float64 over all ranks, Patarasuk and Yuan 2009
    assert run.sent.sum(axis=1).tolist() == [0, 0, 0, ring] * 2
    assert run.rounds.tolist() == [0, 0, 0, 4] * 2
    x, y = (part.reshape(3, 40, -1) for part in DATA)
    alone = [replicas.train(MODEL, own, 1, steps=4, lr=0.05).params[0] for own in zip(x, y, strict=True)]
    together = replicas.train(MODEL, DATA, 3, steps=4, lr=0.05, method=LocalSGD(4))
    assert np.abs(together.params - np.mean(alone, axis=0)).max() < 1e-15


@each("period", [1, 2, 8])
@each("method", [LocalSGD, lambda period: DiLoCo(period, 0.7, 0.5)])
def test_ranks_that_differ_pull_local_sgd_to_another_place_unless_the_period_is_1(method, period):
    a, p, lr = (1.0, 3.0), (1.0, -1.0), 0.1
    data = np.array(a), np.array(p)
    run = replicas.train(Parabolas(), data, 2, method=method(period), lr=lr, steps=240, meters=())
    assert run.params[0] == pytest.approx(local_fixed_point(a, p, lr, period), abs=1e-9)
    minimum = (1.0 * 1 + 3.0 * -1) / (1.0 + 3.0)
    if period == 1:
        assert run.params[0] == pytest.approx(minimum, abs=1e-9)
    else:
        assert run.params[0] > minimum + 0.02  # towards the plain mean of the minima, 0


def test_the_fixed_point_by_hand():
    assert local_fixed_point((1, 1), (0, 3), 0.5, 7) == pytest.approx(1.5)  # equal curvature: no bias at all
    # Two steps of 1/2 leave 1/4 of the distance for curvature 1, and none for 2: (3/4 · 1 + 1 · (−1)) / (7/4)
    assert local_fixed_point((1, 2), (1, -1), 0.5, 2) == pytest.approx(-1 / 7)
    assert local_fixed_point((1, 3), (1, -1), 0.1, 1000) == pytest.approx(0)


def test_diloco_without_an_outer_optimizer_is_local_sgd():
    local, outer = (train(4, steps=12, method=m, optimizer=MOMENTUM) for m in (LocalSGD(4), DiLoCo(4, 1, 0)))
    assert np.abs(local.params - outer.params).max() < 12 * 16 * 2**-53
    assert local.sent.tolist() == outer.sent.tolist()


def test_the_outer_step_is_torchs_nesterov():
    period, world, steps = 3, 4, 12
    run = train(world, steps=steps, method=DiLoCo(period, 0.6, 0.8))
    start = MODEL.init(np.random.default_rng(0))
    outer = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.SGD([outer], lr=0.6, momentum=0.8, nesterov=True)
    local, x, y = [start] * world, *DATA
    stream = np.random.default_rng(np.random.SeedSequence(0).spawn(1)[0])
    batches = [own for _ in range(steps // 2) for own in stream.permutation(120).reshape(2, 60)]
    for step, batch in enumerate(batches, 1):
        parts = batch.reshape(world, 15)
        local = [p - 0.05 * MODEL.gradient(p, x[own], y[own]) for p, own in zip(local, parts, strict=True)]
        if step % period == 0:
            outer.grad = torch.tensor(np.mean([outer.detach().numpy() - p for p in local], axis=0))
            optimizer.step()
            local = [outer.detach().numpy().copy()] * world
    assert np.abs(run.params - np.array(local)).max() < 1e-13


@each("fragments", [2, 3, 6])
@each("world", [3, 4, 5])
def test_fragments_send_the_same_in_a_period_and_a_fraction_of_it_at_a_time(fragments, world):
    whole, streamed = (
        train(world, steps=12, method=DiLoCo(6, fragments=count)).sent.sum(axis=1) for count in (1, fragments)
    )
    assert whole.tolist() == [0, 0, 0, 0, 0, 2 * (world - 1) * MODEL.size * 8] * 2
    assert streamed[:6].sum() == streamed[6:].sum() == whole[:6].sum()
    assert np.count_nonzero(streamed) == 2 * fragments
    assert streamed.max() == 2 * (world - 1) * 8 * np.ceil(MODEL.size / fragments)


def test_a_fragment_is_made_equal_in_its_own_step():
    method, size = DiLoCo(4, fragments=2), MODEL.size
    apart = [np.ptp(train(3, steps=n, method=method).params, axis=0) > 0 for n in (2, 4)]
    half = -(-size // 2)
    assert [(moved[:half].any(), moved[half:].any()) for moved in apart] == [(False, True), (True, False)]


def test_float32_stays_float32():
    data = tuple(part.astype(np.float32) for part in DATA)
    for method in (LocalSGD(2), DiLoCo(2, fragments=2)):
        run = replicas.train(MODEL, data, 4, method=method, steps=4)
        assert run.params.dtype == np.float32
        assert run.sent.sum() == 2 * 2 * 3 * MODEL.size * 4


@each(
    "make",
    [
        lambda: LocalSGD(0),
        lambda: DiLoCo(4, outer_lr=0),
        lambda: DiLoCo(4, outer_momentum=1),
        lambda: DiLoCo(4, fragments=5),
        lambda: local_fixed_point((1, -1), (0, 0), 0.1, 2),
        lambda: local_fixed_point((1, 4), (0, 0), 0.3, 2),
        lambda: local_fixed_point((), (), 0.3, 2),
        lambda: local_fixed_point((1, 4), (0,), 0.1, 2),
        lambda: local_fixed_point((1,), (np.nan,), 0.1, 2),
        lambda: local_fixed_point((1,), (0,), "a", 2),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(InvalidArgument):
        make()
