"""Do K replicas train the model that one process would train?"""

import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from dpbook import collectives
from dpbook.errors import InvalidArgument
from dpbook.replicas import (
    MLP,
    SGD,
    Adam,
    Linear,
    Momentum,
    accuracy,
    average,
    compare,
    cross_entropy,
    digits,
    drift,
    local_gradients,
    shard,
    split,
    synthetic_task,
    train,
    update,
)

WORLDS = [*range(1, 10), 16]
ALGORITHMS = list(collectives.ALGORITHMS)


def own_order(buffers):
    """An all-reduce of ranks that each add up in their own order, beginning with themselves."""
    world = len(buffers)
    return np.stack([sum((buffers[(r + k) % world] for k in range(1, world)), buffers[r]) for r in range(world)])


def without_last(buffers):
    """A sum that leaves the last rank out, the same on every rank."""
    return np.broadcast_to(buffers[:-1].sum(axis=0), buffers.shape).copy()


# The four phases


@pytest.mark.parametrize("world", WORLDS)
def test_shards_are_the_batch_in_order(world):
    x, y = np.arange(world * 6.0).reshape(-1, 2), np.arange(world * 3)
    shards = shard(x, y, world)
    assert [len(own_x) for own_x, _ in shards] == [3] * world
    np.testing.assert_array_equal(np.concatenate([own_x for own_x, _ in shards]), x)
    np.testing.assert_array_equal(np.concatenate([own_y for _, own_y in shards]), y)


def test_local_gradients_are_taken_at_each_ranks_own_parameters():
    model, (x, y) = Linear(2), synthetic_task(4, 2)
    params = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    gradients = local_gradients(model, params, shard(x, y, 2))
    np.testing.assert_array_equal(gradients[0], model.gradient(params[0], x[:2], y[:2]))
    np.testing.assert_array_equal(gradients[1], model.gradient(params[1], x[2:], y[2:]))


@pytest.mark.parametrize("size", [1, 3, 16, 37])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_average_of_integers_is_exact_on_every_rank(name, world, size):
    integers = np.random.default_rng(world).integers(-1000, 1000, (world, size))
    averaged = average(integers.astype(np.float64), collectives.ALGORITHMS[name](world))
    np.testing.assert_array_equal(averaged, np.tile(integers.sum(axis=0) / world, (world, 1)))


def test_average_leaves_the_gradients_alone_and_keeps_their_dtype():
    gradients = np.ones((3, 5), np.float32)
    for all_reduce in (collectives.ring(3), own_order):
        assert average(gradients, all_reduce).dtype == np.float32
    assert (gradients == 1).all()


def test_every_rank_updates_from_its_own_average():
    params = np.zeros((2, 1))
    after = update(params, np.array([[1.0], [-3.0]]), [SGD(0.5), SGD(0.25)])
    assert after.tolist() == [[-0.5], [0.75]]
    assert not params.any()


# Averaged shard gradients are the gradient of the whole batch


def magnitude(model, params, x, y):
    """The gradient's formula with every term in absolute value: what a relative rounding error multiplies at most."""
    p = {name: np.abs(tensor) for name, tensor in model.views(params).items()}
    x, y = np.abs(x), np.abs(y)
    if isinstance(model, Linear):
        slopes = 2 * (x @ p["W"] + p["b"] + y)
        terms = [x.T @ slopes, slopes.sum(axis=0)]
    else:
        hidden = 1 + x @ p["W1"] + p["b1"]  # |tanh| ≤ 1, and tanh passes on the error of its argument
        slopes = 2 * (hidden @ p["W2"] + p["b2"] + y)
        before = (slopes @ p["W2"].T) * (1 + 2 * hidden)  # 1 − h² is at most 1; an error of h counts 2|h| times
        terms = [x.T @ before, before.sum(axis=0), hidden.T @ slopes, slopes.sum(axis=0)]
    return np.concatenate([term.ravel() for term in terms]) / len(x)


def rounding_bound(model, params, x, y, world):
    """|averaged − big batch| ≤ 2 γ_m · magnitude to first order, with γ_m = m u / (1 − m u) (Higham 2002, section 3.1).

    m counts the roundings on the longest path: dot products over inputs and hidden units, the sum over the
    examples, the sum over the ranks, two divisions, and a handful of single operations.
    """
    m = len(x) + 2 * getattr(model, "hidden", 0) + model.inputs + world + 20
    unit = np.finfo(params.dtype).eps / 2
    return 2 * m * unit / (1 - m * unit) * magnitude(model, params, x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("model", [Linear(3), MLP(3, 5)], ids=repr)
@pytest.mark.parametrize("world", WORLDS)
def test_averaged_gradient_is_the_big_batch_gradient_within_rounding(world, model, dtype):
    x, y = synthetic_task(5 * world, 3, seed=world, dtype=dtype)
    params = np.random.default_rng(world).standard_normal(model.size).astype(dtype)
    big_batch = model.gradient(params, x, y)
    gradients = local_gradients(model, np.tile(params, (world, 1)), shard(x, y, world))
    bound = rounding_bound(model, params, x, y, world)
    for name in ALGORITHMS:
        averaged = average(gradients, collectives.ALGORITHMS[name](world))
        assert (np.abs(averaged - big_batch) <= bound).all(), name
    if world > 1:  # and the bound is not so wide that a missing rank fits in
        assert (np.abs(average(gradients, without_last) - big_batch) > bound).any()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_averaged_gradient_of_integers_is_the_big_batch_gradient_exactly(name, world):
    """Integer data and shards of 8: sums have no rounding, a division by 8 neither, and the last one is the same."""
    rng = np.random.default_rng(world)
    model = Linear(4, 2)
    x, y = (rng.integers(-9, 10, (8 * world, columns)).astype(np.float64) for columns in (4, 2))
    params = rng.integers(-9, 10, model.size).astype(np.float64)
    gradients = local_gradients(model, np.tile(params, (world, 1)), shard(x, y, world))
    averaged = average(gradients, collectives.ALGORITHMS[name](world))
    np.testing.assert_array_equal(averaged, np.tile(model.gradient(params, x, y), (world, 1)))


# Training


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("optimizer", [SGD, Momentum, Adam])
def test_replicas_stay_bit_equal(optimizer, name, world):
    data = synthetic_task(3 * world, 3, dtype=np.float32)
    schedule = collectives.ALGORITHMS[name](world)
    run = train(MLP(3, 4), data, world, schedule, optimizer=optimizer, steps=5, lr=0.1)
    assert run.drift == 0
    assert drift(run.params).identical


def test_equal_averages_are_not_enough():
    """Ranks that add up in their own order pass `allclose` and drift; two ranks cannot show it, for a + b = b + a."""
    data = synthetic_task(48, 3)
    pair = train(MLP(3, 4), data, 2, own_order)
    trio = train(MLP(3, 4), data, 3, own_order)
    assert pair.drift == 0
    assert 0 < trio.drift < 1e-12
    assert np.allclose(trio.params, trio.params[0], rtol=0, atol=1e-12)


def test_gap_shows_a_sum_that_is_wrong_on_every_rank():
    run = train(MLP(3, 4), synthetic_task(48, 3), 4, without_last, steps=3)
    assert run.drift == 0
    assert run.gaps.min() > 1e-3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_world_of_one_is_plain_gradient_descent(dtype):
    model, (x, y) = MLP(3, 4), synthetic_task(20, 3, dtype=dtype)
    params = model.init(np.random.default_rng(5), dtype)
    losses = []
    for _ in range(10):
        losses.append(model.loss(params, x, y))
        params = params - 0.1 * model.gradient(params, x, y)
    run = train(model, (x, y), 1, steps=10, lr=0.1, seed=5)
    np.testing.assert_array_equal(run.params, params[None])
    assert run.params.dtype == dtype
    assert run.losses.tolist() == losses
    assert run.final_loss == model.loss(params, x, y)
    assert run.gap == run.drift == 0


@pytest.mark.parametrize("optimizer", [SGD, Momentum, Adam])
def test_mini_batches_do_not_depend_on_the_world(optimizer):
    data = synthetic_task(100, 3)
    settings = {"optimizer": optimizer, "steps": 12, "lr": 0.01, "global_batch": 24}
    alone = train(MLP(3, 4), data, 1, **settings)
    for world in (2, 3, 8):
        together = train(MLP(3, 4), data, world, **settings)
        # Twelve steps of rounding errors around 1e-16; another batch would differ in the second digit.
        np.testing.assert_allclose(together.params, np.tile(alone.params, (world, 1)), rtol=0, atol=1e-12)
        np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-12)


class Recorder:
    """A model that learns nothing and remembers which examples each gradient was asked for."""

    size = 1

    def __init__(self):
        self.seen = []

    def init(self, rng, dtype=np.float64):
        return np.zeros(1, dtype)

    def loss(self, params, x, y):
        return float(x.mean())

    def gradient(self, params, x, y):
        np.testing.assert_array_equal(x, y)
        self.seen.append(x[:, 0].astype(int).tolist())
        return np.zeros(1)

    def predict(self, params, x):
        return x


def test_every_epoch_visits_each_example_at_most_once():
    model, x = Recorder(), np.arange(22.0)[:, None]
    train(model, (x, x), 2, steps=10, global_batch=4)  # five batches of 4 an epoch; 2 of 22 are left over
    local = [rows for rows in model.seen if len(rows) == 2]  # the other calls are the big batch's
    epochs = [np.ravel(local[:10]).tolist(), np.ravel(local[10:]).tolist()]
    assert [len(set(epoch)) for epoch in epochs] == [20, 20]
    assert epochs[0] != epochs[1]


def test_runs_repeat_and_seeds_matter():
    settings = {"steps": 5, "global_batch": 8}
    first, again, other = (train(Linear(3), synthetic_task(40, 3), 2, seed=s, **settings) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.params, again.params)
    assert not np.array_equal(first.losses, other.losses)


def test_optimizer_takes_settings():
    run = train(Linear(3), synthetic_task(8, 3), 2, optimizer=partial(Momentum, momentum=0.0), steps=4)
    plain = train(Linear(3), synthetic_task(8, 3), 2, optimizer=SGD, steps=4)
    np.testing.assert_array_equal(run.params, plain.params)


def test_reporter_hears_every_step_and_nothing_prints(capsys):
    heard = []
    run = train(Linear(3), synthetic_task(8, 3), 2, steps=4, report=lambda step, loss: heard.append((step, loss)))
    assert heard == list(zip([1, 2, 3, 4], run.losses.tolist(), strict=True))
    assert capsys.readouterr() == ("", "")


def test_repr_says_what_happened():
    run = train(Linear(3), synthetic_task(8, 3), 2, steps=4)
    assert re.fullmatch(r"Run\(2 replicas, 4 steps, loss \d\.\d{6} → \d\.\d{6}, drift 0, gap \S+\)", repr(run))
    assert repr(train(Linear(3), synthetic_task(8, 3), 1, steps=1)).startswith("Run(1 replica, 1 step, loss ")


# The figures that the book prints


def test_chapter_one():
    """Eight replicas, 200 full-batch steps: the figures of the first chapter.

    0.179049 is the mean of (p − y)², without ½, after the 200th update (before it: 0.179161). W1 (16, 32) is drawn
    before W2 (32,) from `default_rng(0)`.
    """
    model, data = MLP(16, 32), synthetic_task()
    run = train(model, data, 8, collectives.ring(8), steps=200, lr=0.02, seed=0)
    alone = train(model, data, 1, steps=200, lr=0.02, seed=0)
    assert run.drift == 0
    assert f"{run.losses[-1]:.6f} {run.final_loss:.6f}" == "0.179161 0.179049"
    assert f"{alone.final_loss:.6f}" == "0.179049"
    # Gradients are averages of about 1, so a few units of 1.1e-16: the largest seen in 200 steps was 6.1e-16.
    assert 0 < run.gap < 5e-15
    assert 0 < compare(run.params, alone.params).max_error < 5e-15


def test_digits_are_learned():
    images, labels = digits()
    training, test = split(images, labels)
    model = MLP(64, 32, 10, cross_entropy)
    run = train(model, training, 4, steps=300, lr=0.5, global_batch=96)
    assert run.drift == 0
    assert run.gap < 1e-14
    assert accuracy(model, run.params[0], *test) > 0.9


# Bad input

X, Y = np.zeros((6, 3)), np.zeros((6, 1))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("world", lambda: shard(X, Y, 0)),
        ("y", lambda: shard(X, Y[:5], 1)),
        ("global batch", lambda: shard(X, Y, 4)),
        ("global batch", lambda: shard(X[:0], Y[:0], 1)),
        ("shards", lambda: local_gradients(Linear(3), np.zeros((2, 4)), shard(X, Y, 3))),
        ("gradients", lambda: average(np.zeros(3), own_order)),
        ("gradients", lambda: average(np.zeros((2, 3), int), own_order)),
        ("all_reduce", lambda: average(np.zeros((2, 3)), collectives.ring(3))),
        ("all_reduce", lambda: average(np.zeros((2, 3)), "ring")),
        ("all_reduce", lambda: average(np.zeros((2, 3)), lambda buffers: buffers.sum(axis=0))),
        ("params, averaged, optimizers", lambda: update(np.zeros((2, 3)), np.zeros((2, 3)), [SGD(1)])),
        ("steps", lambda: train(Linear(3), (X, Y), 2, steps=0)),
        ("seed", lambda: train(Linear(3), (X, Y), 2, seed=-1)),
        ("world", lambda: train(Linear(3), (X, Y), 0)),
        ("lr", lambda: train(Linear(3), (X, Y), 2, lr=0)),
        ("optimizer", lambda: train(Linear(3), (X, Y), 2, optimizer=SGD(0.1))),
        ("global batch", lambda: train(Linear(3), (X, Y), 4)),
        ("global batch", lambda: train(Linear(3), (X, Y), 2, global_batch=3)),
        ("global_batch", lambda: train(Linear(3), (X, Y), 2, global_batch=8)),
        ("dtype", lambda: train(Linear(3), (X.astype(int), Y), 2)),
        ("all_reduce", lambda: train(Linear(3), (X, Y), 2, collectives.ring(3))),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()


def test_the_room_needs_numpy_alone():
    code = "import sys, dpbook.replicas; print({'torch', 'matplotlib', 'ipywidgets'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
