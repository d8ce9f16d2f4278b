"""Do K replicas train the model that one process would train?"""

import re
from collections import Counter
from functools import partial

import numpy as np
import pytest

from dpbook import collectives
from dpbook.collectives import in_own_order
from dpbook.core.errors import InvalidArgument
from dpbook.replicas import (
    METERS,
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
    gradient_bound,
    local_gradients,
    shard,
    split,
    synthetic_task,
    train,
    train_on,
    training,
    update,
)
from tests.cases import each

WORLDS = [*range(1, 10), 16]
ALGORITHMS = list(collectives.ALGORITHMS)


def without_last(buffers):
    """A sum that leaves the last rank out, the same on every rank."""
    return np.broadcast_to(buffers[:-1].sum(axis=0), buffers.shape).copy()


# The four phases


@each("world", WORLDS)
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


def test_average_leaves_the_gradients_alone_and_keeps_their_dtype():
    gradients = np.ones((3, 5), np.float32)
    for all_reduce in (collectives.ring(3), in_own_order):
        assert average(gradients, all_reduce).dtype == np.float32
    assert (gradients == 1).all()


def test_every_rank_updates_from_its_own_average():
    params = np.zeros((2, 1))
    after = update(params, np.array([[1.0], [-3.0]]), [SGD(0.5), SGD(0.25)])
    assert after.tolist() == [[-0.5], [0.75]]
    assert not params.any()


# Averaged shard gradients are the gradient of the whole batch


@each("dtype", [np.float32, np.float64])
@each("model", [Linear(3), MLP(3, 5)])
@each("world", WORLDS)
def test_averaged_gradient_is_the_big_batch_gradient_within_rounding(world, model, dtype):
    x, y = synthetic_task(5 * world, 3, seed=world, dtype=dtype)
    params = np.random.default_rng(world).standard_normal(model.size).astype(dtype)
    big_batch = model.gradient(params, x, y)
    gradients = local_gradients(model, np.tile(params, (world, 1)), shard(x, y, world))
    bound = gradient_bound(model, params, x, y)
    for name in ALGORITHMS:
        averaged = average(gradients, collectives.ALGORITHMS[name](world))
        assert compare(averaged, big_batch, bound).verdict in ("rounding", "bit-identical"), name
    if world > 1:  # and the bound is not so wide that a missing rank fits in
        assert compare(average(gradients, without_last), big_batch, bound).verdict == "different"


@each("world", WORLDS)
@each("name", ALGORITHMS)
def test_averaged_gradient_of_integers_is_the_big_batch_gradient_exactly(name, world):
    """Integer data and shards of 8: sums have no rounding, a division by 8 neither, and the last one is the same."""
    rng = np.random.default_rng(world)
    model = Linear(4, 2)
    x, y = (rng.integers(-9, 10, (8 * world, columns)).astype(np.float64) for columns in (4, 2))
    params = rng.integers(-9, 10, model.size).astype(np.float64)
    gradients = local_gradients(model, np.tile(params, (world, 1)), shard(x, y, world))
    averaged = average(gradients, collectives.ALGORITHMS[name](world))
    np.testing.assert_array_equal(averaged, np.tile(model.gradient(params, x, y), (world, 1)))


# Unequal shards


def uneven(examples, world, seed):
    """Sizes that add up to ``examples``, some of them 0 where there are few."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, examples + 1, world - 1))
    return np.diff([0, *cuts, examples]).tolist()


@each("examples", [1, 5, 40])
@each("world", WORLDS)
def test_unequal_shards_are_the_batch_in_order(world, examples):
    x, y = np.arange(2.0 * examples).reshape(-1, 2), np.arange(examples)
    sizes = uneven(examples, world, world)
    shards = shard(x, y, world, sizes)
    assert [len(own_x) for own_x, _ in shards] == sizes
    np.testing.assert_array_equal(np.concatenate([own_x for own_x, _ in shards]), x)
    np.testing.assert_array_equal(np.concatenate([own_y for _, own_y in shards]), y)


def test_a_rank_without_examples_contributes_nothing_and_takes_part():
    model, (x, y) = Linear(2), synthetic_task(3, 2)
    params = np.random.default_rng(0).standard_normal((3, model.size))
    gradients = local_gradients(model, params, shard(x, y, 3, [2, 0, 1]))
    assert not gradients[1].any()
    assert gradients[[0, 2]].all()


@each("dtype", [np.float32, np.float64])
@each("world", WORLDS)
def test_weights_of_equal_shards_change_no_bit(world, dtype):
    gradients = np.random.default_rng(world).standard_normal((world, 11)).astype(dtype)
    plain = average(gradients, collectives.ring(world))
    for share in (1, 3, 1366):
        np.testing.assert_array_equal(average(gradients, collectives.ring(world), [share] * world), plain)


@each("world", WORLDS)
def test_weighted_average_of_integers_is_the_big_batch_gradient(world):
    """All sums are exact here, which leaves the roundings of the divisions: two for a shard, three for a weight."""
    rng = np.random.default_rng(world)
    model, n = Linear(4, 2), 6 * world + 1
    x, y = (rng.integers(-9, 10, (n, columns)).astype(np.float64) for columns in (4, 2))
    params = rng.integers(-9, 10, model.size).astype(np.float64)
    sizes = uneven(n, world, world)
    gradients = local_gradients(model, np.tile(params, (world, 1)), shard(x, y, world, sizes))
    averaged = average(gradients, collectives.ring(world), sizes)
    scale = (np.abs(gradients) * np.array(sizes)[:, None]).sum(axis=0) / n
    assert (np.abs(averaged - model.gradient(params, x, y)) <= 2**-53 * (world + 8) * scale).all()


@each("optimizer", [SGD, Momentum, Adam])
@each("world", [2, 3, 5, 9])
def test_unequal_shards_train_like_one_process(world, optimizer):
    data = synthetic_task(40, 3)
    settings = {"optimizer": optimizer, "steps": 20, "lr": 0.05}
    alone = train(MLP(3, 4), data, 1, **settings)
    sizes = [1] * (world - 1) + [41 - world]
    together = train(MLP(3, 4), data, world, sizes=sizes, **settings)
    biased = train(MLP(3, 4), data, world, sizes=sizes, weighted=False, **settings)
    assert together.drift == biased.drift == 0  # a bias is the same on every rank: no comparison of replicas shows it
    assert together.gap < 1e-14
    assert biased.gap > 1e-2
    np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-12)
    np.testing.assert_allclose(together.params, np.tile(alone.params, (world, 1)), rtol=0, atol=1e-12)
    assert np.abs(biased.params[0] - alone.params[0]).max() > 1e-3


def test_more_ranks_than_examples():
    data = synthetic_task(3, 3)
    alone = train(MLP(3, 4), data, 1, steps=5)
    together = train(MLP(3, 4), data, 5, sizes=[0, 1, 1, 0, 1], steps=5)
    assert together.drift == 0
    np.testing.assert_allclose(together.params, np.tile(alone.params, (5, 1)), rtol=0, atol=1e-14)


# What a log shows


@pytest.mark.parametrize("sizes", [None, [5, 12, 7]])
def test_the_batchs_loss_is_the_weighted_mean_of_the_ranks(sizes):
    run = train(MLP(3, 4), synthetic_task(24, 3), 3, sizes=sizes, steps=6)
    alone = train(MLP(3, 4), synthetic_task(24, 3), 1, steps=6)
    assert run.local_losses.shape == (6, 3)
    np.testing.assert_allclose(run.losses, np.average(run.local_losses, axis=1, weights=sizes), rtol=1e-15)
    np.testing.assert_allclose(run.losses, alone.losses, rtol=1e-12)
    assert (np.abs(run.local_losses[:, 0] - run.losses) > 1e-3).all()  # rank 0's log is another number


# Replicas that start differently


@each("optimizer", [SGD, Momentum, Adam])
@each("weight_decay", [0.0, 0.5])
def test_an_initial_offset_stays_or_shrinks_by_the_decay_alone(optimizer, weight_decay):
    """All ranks step along one direction, so differences see only params · (1 − lr · weight_decay)."""
    model, world, steps, lr = MLP(3, 4), 4, 100, 0.05
    start = np.stack([model.init(np.random.default_rng(rank)) for rank in range(world)])
    decaying = partial(optimizer, weight_decay=weight_decay)
    run = train(model, synthetic_task(24, 3), world, optimizer=decaying, start=start, steps=steps, lr=lr)
    offset, expected = run.params - run.params[0], (start - start[0]) * (1 - lr * weight_decay) ** steps
    # Three roundings per step and replica, of numbers that never exceed 10; and those of the power itself.
    np.testing.assert_allclose(offset, expected, rtol=steps * 2**-52, atol=2 * 3 * steps * 10 * 2**-53)
    assert run.drift > 0.1
    assert np.abs(run.params).max() < 10
    assert np.abs(run.params - start).max() > 0.1  # and the replicas did move


def test_start_is_where_training_starts():
    data, model = synthetic_task(24, 3), MLP(3, 4)
    drawn = train(model, data, 2, steps=3, seed=5)
    given = train(model, data, 2, steps=3, start=np.tile(model.init(np.random.default_rng(5)), (2, 1)))
    np.testing.assert_array_equal(given.params, drawn.params)


# Training


@each("world", WORLDS)
@each("name", ALGORITHMS)
@each("optimizer", [SGD, Momentum, Adam])
def test_replicas_stay_bit_equal(optimizer, name, world):
    data = synthetic_task(3 * world, 3, dtype=np.float32)
    schedule = collectives.ALGORITHMS[name](world)
    run = train(MLP(3, 4), data, world, schedule, optimizer=optimizer, steps=5, lr=0.1)
    assert run.drift == 0
    assert drift(run.params).identical


@pytest.mark.parametrize(("dtype", "smallest", "largest"), [(np.float32, 1e-9, 1e-7), (np.float64, 1e-18, 1e-15)])
def test_equal_averages_are_not_enough(dtype, smallest, largest):
    """Ranks that add up in their own order pass `allclose` and drift; two ranks cannot show it, for a + b = b + a.

    Seen in 200 steps of the book's MLP on three ranks: 1.5e-8 in float32, 1.1e-16 in float64.
    """
    data = tuple(part[:768] for part in synthetic_task(dtype=dtype))
    pair, trio = (train(MLP(16, 32), data, world, in_own_order) for world in (2, 3))
    assert pair.drift == 0
    assert smallest < trio.drift < largest
    assert np.allclose(trio.params, trio.params[0])


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


def test_training_prints_nothing(capsys):
    train(Linear(3), synthetic_task(8, 3), 2, steps=4)
    assert capsys.readouterr() == ("", "")


def test_repr_says_what_happened():
    run = train(Linear(3), synthetic_task(8, 3), 2, steps=4)
    assert re.fullmatch(r"Run\(2 replicas, 4 steps, loss \d\.\d{6} → \d\.\d{6}, drift 0, gap \S+\)", repr(run))
    assert repr(train(Linear(3), synthetic_task(8, 3), 1, steps=1)).startswith("Run(1 replica, 1 step, loss ")


# The figures that the book prints


@pytest.mark.proof
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


@each(
    ("name", "call"),
    [
        ("world", lambda: shard(X, Y, 0)),
        ("y", lambda: shard(X, Y[:5], 1)),
        ("global batch", lambda: shard(X, Y, 4)),
        ("global batch", lambda: shard(X[:0], Y[:0], 1)),
        ("sizes", lambda: shard(X, Y, 2, [3, 2])),
        ("sizes", lambda: shard(X, Y, 2, [3, 2, 1])),
        ("sizes", lambda: shard(X, Y, 2, [7, -1])),
        ("counts", lambda: average(np.zeros((2, 3)), in_own_order, [1, 2, 3])),
        ("start", lambda: train(Linear(3), (X, Y), 2, start=np.zeros(4))),
        ("start", lambda: train(Linear(3), (X, Y), 2, start=np.zeros((2, 4), np.float32))),
        ("shards", lambda: local_gradients(Linear(3), np.zeros((2, 4)), shard(X, Y, 3))),
        ("gradients", lambda: average(np.zeros(3), in_own_order)),
        ("gradients", lambda: average(np.zeros((2, 3), int), in_own_order)),
        ("all_reduce", lambda: average(np.zeros((2, 3)), collectives.ring(3))),
        ("all_reduce", lambda: average(np.zeros((2, 3)), "ring")),
        ("all_reduce", lambda: average(np.zeros((2, 3)), collectives.reduce_scatter(2))),
        ("all_reduce", lambda: average(np.zeros((2, 3)), collectives.all_gather(2))),
        ("all_reduce", lambda: average(np.zeros((2, 3)), lambda buffers: buffers.sum(axis=0))),
        ("params, averaged, optimizers", lambda: update(np.zeros((2, 3)), np.zeros((2, 3)), [SGD(1)])),
        ("steps", lambda: train(Linear(3), (X, Y), 2, steps=0)),
        ("seed", lambda: train(Linear(3), (X, Y), 2, seed=-1)),
        ("world", lambda: train(Linear(3), (X, Y), 0)),
        ("lr", lambda: train(Linear(3), (X, Y), 2, lr=0)),
        ("optimizer", lambda: train(Linear(3), (X, Y), 2, optimizer=SGD(0.1))),
        ("meters", lambda: train(Linear(3), (X, Y), 2, meters="loss")),
        ("meters", lambda: train(Linear(3), (X, Y), 2, meters=["loss", "time"])),
        ("global batch", lambda: train(Linear(3), (X, Y), 4)),
        ("global batch", lambda: train(Linear(3), (X, Y), 2, global_batch=3)),
        ("global_batch", lambda: train(Linear(3), (X, Y), 2, global_batch=8)),
        ("dtype", lambda: train(Linear(3), (X.astype(int), Y), 2)),
        ("all_reduce", lambda: train(Linear(3), (X, Y), 2, collectives.ring(3))),
        ("all_reduce", lambda: train(Linear(3), (X, Y), 2, collectives.reduce_scatter(2))),
        ("model", lambda: train(5, (X, Y), 2)),
        ("model", lambda: train(Linear, (X, Y), 2)),
        ("data", lambda: train(Linear(3), X, 2)),
        ("data", lambda: train(Linear(3), 5, 2)),
        ("data", lambda: train(Linear(3), (X, Y, Y), 2)),
        ("data", lambda: train(Linear(3), (1, 2), 2)),
        ("fed", lambda: train_on(Linear(3), (X, Y), 5)),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()


class Counting(Linear):
    """Counts what is asked of it."""

    def __init__(self, features):
        super().__init__(features)
        self.calls = Counter()

    def loss(self, params, x, y):
        self.calls["loss"] += 1
        return super().loss(params, x, y)

    def gradient(self, params, x, y):
        self.calls["gradient"] += 1
        return super().gradient(params, x, y)


@pytest.mark.parametrize(
    ("meters", "losses", "gradients", "drifts"),
    [((), 0, 0, 0), (["loss"], 3 * 5, 0, 0), (["gap"], 0, 5, 0), ({"drift"}, 0, 0, 5), (METERS, 3 * 5, 5, 5)],
)
def test_a_meter_that_is_off_computes_nothing(monkeypatch, meters, losses, gradients, drifts):
    """Three ranks and five steps: beyond a gradient per rank and step, and one loss at the end."""
    model, seen = Counting(4), []
    x = np.arange(24.0).reshape(6, 4) / 24
    monkeypatch.setattr(training, "drift", lambda params: seen.append(params) or drift(params))
    run = train(model, (x, x @ np.ones((4, 1))), 3, steps=5, lr=0.1, meters=meters)
    assert model.calls == {"loss": losses + 1, "gradient": 3 * 5 + gradients}
    assert len(seen) == drifts
    for name, array in {"loss": run.losses, "drift": run.drifts, "gap": run.gaps}.items():
        assert array.shape == (5,)
        assert np.isnan(array).all() == (name not in meters)


def test_what_is_measured_does_not_change_what_is_trained():
    x = np.arange(24.0).reshape(6, 4) / 24
    runs = [train(Linear(4), (x, x @ np.ones((4, 1))), 3, steps=5, lr=0.1, meters=meters) for meters in ((), METERS)]
    assert np.array_equal(runs[0].params, runs[1].params)
    assert "loss nan" in repr(runs[0])
