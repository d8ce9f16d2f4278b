"""Do feeds, accumulation and schedules train as they should, and what does a missing division do?"""

from functools import partial

import numpy as np
import pytest

from dpbook import collectives
from dpbook.core.errors import Deadlock, InvalidArgument
from dpbook.replicas import (
    MLP,
    SGD,
    Adam,
    Linear,
    Momentum,
    Sampler,
    accuracy,
    contiguous,
    cross_entropy,
    digits,
    feed,
    keep,
    split,
    synthetic_task,
    train,
    train_on,
    undivided,
    warm_up,
)
from tests.cases import each

WORLDS = [*range(1, 10), 16]
POWERS = [1, 2, 4, 8, 16]  # multiplying by these is exact


def feed_of(examples, world, batch, epochs=1, **settings):
    return feed([Sampler(examples, world, rank, **settings) for rank in range(world)], examples, batch, epochs)


# Training on a feed


@each("world", WORLDS)
def test_one_step_over_all_data_is_that_of_train(world):
    data = synthetic_task(3 * world, 3)
    fed = feed_of(3 * world, world, 3, epochs=5, shuffle=False, cut=contiguous)
    expected, run = train(MLP(3, 4), data, world, steps=5, lr=0.1), train_on(MLP(3, 4), data, fed, lr=0.1)
    for field in ("params", "losses", "local_losses", "drifts", "gaps", "final_loss"):
        np.testing.assert_array_equal(getattr(run, field), getattr(expected, field))


@each("optimizer", [SGD, Momentum, Adam])
@each("world", WORLDS)
def test_updates_are_those_of_the_big_batches(optimizer, world):
    """A plain loop over the same examples, on one process; unequal parts and a last batch that is not full."""
    examples, batch, accumulation = 5 * world + 2, 2, 2
    model, (x, y) = MLP(3, 4), synthetic_task(examples, 3)
    fed = feed_of(examples, world, batch, epochs=2, fit=keep)
    if fed.hang:
        pytest.skip("ranks have different numbers of steps")
    params, own = model.init(np.random.default_rng(0)), optimizer(0.05)
    losses = []
    for epoch in range(2):
        steps = [np.concatenate(local) for local in fed.batches(epoch)]
        for first in range(0, len(steps), accumulation):
            rows = np.concatenate(steps[first : first + accumulation])
            losses.append(model.loss(params, x[rows], y[rows]))
            params = own.step(params, model.gradient(params, x[rows], y[rows]))
    run = train_on(model, (x, y), fed, accumulation=accumulation, optimizer=optimizer, lr=0.05)
    assert run.drift == 0
    assert run.gap < 1e-14
    np.testing.assert_allclose(run.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(run.params[0], params, rtol=0, atol=1e-12)


def test_the_feeds_of_padded_worlds_train_without_gap():
    fed = feed_of(237, 2, 8, epochs=2)
    run = train_on(MLP(3, 4), synthetic_task(237, 3), fed, accumulation=4)
    assert len(run.losses) == 8  # 15 micro-batches an epoch: 4 + 4 + 4 + 3
    assert run.gap < 1e-15


class Constant:
    """A model whose every gradient is 1: what an update moves by is the learning rate times the buffer."""

    size = 1

    def init(self, rng, dtype=np.float64):
        return np.zeros(1, dtype)

    def loss(self, params, x, y):
        return float(params[0])

    def gradient(self, params, x, y):
        return np.ones(1)

    def predict(self, params, x):
        return x


@pytest.mark.parametrize(("leftover", "odd"), [("carry", [(14, 1.875)]), ("drop", []), ("step", [])])
def test_the_leftover_seven(leftover, odd):
    data = (np.zeros((237, 1)), np.zeros(237))
    fed = feed_of(237, 2, 1, epochs=2)
    run = train_on(Constant(), data, fed, accumulation=8, leftover=leftover, lr=1.0)
    changes = -np.diff([*run.losses, run.params[0, 0]])
    assert [(step, change) for step, change in enumerate(changes) if change != pytest.approx(1)] == odd
    assert len(changes) == (30 if leftover == "step" else 28)
    assert [step for step, gap in enumerate(run.gaps) if gap > 1e-12] == [step for step, _ in odd]


def test_unequal_numbers_of_steps_deadlock():
    with pytest.raises(Deadlock, match="rank 0 waits in step 119 for rank 1, which had only 118 batches"):
        train_on(MLP(3, 4), synthetic_task(237, 3), feed_of(237, 2, 1, fit=keep))


def test_a_learning_rate_can_depend_on_the_step():
    data = (np.zeros((4, 1)), np.zeros(4))
    run = train(Constant(), data, 2, steps=20, lr=warm_up(1.0, 20, 0.5))
    changes = -np.diff([*run.losses, run.params[0, 0]])
    assert changes == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9] + [1.0] * 11)


@pytest.mark.parametrize("optimizer", [SGD, Momentum, Adam, lambda lr: SGD(2 * lr)])
def test_a_constant_function_is_a_constant_learning_rate(optimizer):
    data = synthetic_task(24, 3)
    runs = [train(MLP(3, 4), data, 2, steps=6, optimizer=optimizer, lr=lr) for lr in (0.1, lambda step: 0.1)]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)


def test_an_accelerating_run_keeps_its_history():
    """Momentum's velocity survives a change of the learning rate."""
    rate, data = warm_up(0.5, 10, 1.0), (np.zeros((2, 1)), np.zeros(2))
    run = train(Constant(), data, 1, steps=3, lr=rate, optimizer=partial(Momentum, momentum=0.5))
    assert run.params[0, 0] == pytest.approx(-(0.05 * 1 + 0.1 * 1.5 + 0.15 * 1.75))


# The missing division

TRAINING, TEST = split(*digits())
DIGITS = MLP(64, 32, 10, cross_entropy)
GENTLE = {"steps": 12, "global_batch": 48, "lr": 2.0**-6}


def with_sum(world, optimizer, lr=GENTLE["lr"]):
    settings = {**GENTLE, "lr": lr, "optimizer": optimizer}
    return train(MLP(3, 4), synthetic_task(240, 3), world, undivided(collectives.ring(world)), **settings)


def with_mean(world, optimizer, lr=GENTLE["lr"]):
    settings = {**GENTLE, "lr": lr, "optimizer": optimizer}
    return train(MLP(3, 4), synthetic_task(240, 3), world, **settings)


@each("world", WORLDS)
def test_undivided_is_the_sum(world):
    buffers = np.random.default_rng(world).integers(-9, 10, (world, 5)).astype(float)
    sums = undivided(collectives.ring(world))(buffers)
    np.testing.assert_array_equal(sums / world, np.tile(buffers.sum(axis=0), (world, 1)))


@each("optimizer", [SGD, Momentum])
@each("world", POWERS)
def test_sgd_and_momentum_take_k_times_the_step_to_the_bit(world, optimizer):
    np.testing.assert_array_equal(
        with_sum(world, optimizer).params, with_mean(world, optimizer, world * GENTLE["lr"]).params
    )


@each("weight_decay", [0.0, 0.125])
@each("world", POWERS)
def test_adam_and_adamw_take_the_step_of_a_kth_of_epsilon_to_the_bit(world, weight_decay):
    adam = partial(Adam, weight_decay=weight_decay)
    hidden, smaller = with_sum(world, adam), with_mean(world, partial(adam, epsilon=1e-8 / world))
    np.testing.assert_array_equal(hidden.params, smaller.params)


@pytest.mark.parametrize("world", [3, 5, *(pytest.param(world, marks=pytest.mark.proof) for world in (6, 7, 9))])
def test_other_worlds_do_so_within_rounding(world):
    same = [(SGD, SGD, world), (Momentum, Momentum, world), (Adam, partial(Adam, epsilon=1e-8 / world), 1)]
    for broken, equivalent, factor in same:
        unmeasured = partial(train, MLP(3, 4), synthetic_task(27 * world, 3), world, meters=())
        a = unmeasured(undivided(collectives.ring(world)), optimizer=broken)
        b = unmeasured(optimizer=equivalent, lr=0.02 * factor)
        np.testing.assert_allclose(a.params, b.params, rtol=0, atol=1e-9)


def test_weight_decay_under_sgd_is_not_scaled_along():
    decaying = partial(SGD, weight_decay=0.5)
    assert not np.allclose(with_sum(4, decaying).params, with_mean(4, decaying, 4 * GENTLE["lr"]).params, atol=1e-3)
    compensated = with_mean(4, partial(SGD, weight_decay=0.125), 4 * GENTLE["lr"])
    np.testing.assert_array_equal(with_sum(4, decaying).params, compensated.params)


SUM = undivided(collectives.ring(8))


@pytest.mark.proof
def test_chapter_ones_task_looks_nine_times_better_with_the_sum_until_it_diverges():
    right, broken = (
        train(MLP(16, 32), synthetic_task(), 8, all_reduce, steps=200, lr=0.02) for all_reduce in (None, SUM)
    )
    assert f"{right.final_loss:.6f}" == "0.179049"
    assert broken.final_loss < right.final_loss / 9  # 0.0194
    assert broken.drift == 0
    assert broken.gap > 0.1  # the one meter that shows it
    with np.errstate(over="ignore", invalid="ignore"):
        diverged = train(MLP(16, 32), synthetic_task(), 8, SUM, steps=20, lr=0.2)
    assert diverged.losses[-1] > 1e20
    assert train(MLP(16, 32), synthetic_task(), 8, steps=20, lr=0.2).losses[-1] < 0.2


def on_digits(optimizer, lr, all_reduce=None, meters=("loss",)):
    settings = {"optimizer": optimizer, "steps": 90, "lr": lr, "global_batch": 240, "meters": meters}
    return train(DIGITS, TRAINING, 8, all_reduce, **settings)


def test_on_the_digits_sgd_looks_better_at_one_rate_and_fails_at_another():
    right, broken = on_digits(SGD, 0.2), on_digits(SGD, 0.2, SUM)
    assert broken.losses[-1] < right.losses[-1] / 3  # 0.17 against 0.63
    right, broken = on_digits(SGD, 0.5), on_digits(SGD, 0.5, SUM)
    assert accuracy(DIGITS, right.params[0], *TEST) > 0.9
    assert accuracy(DIGITS, broken.params[0], *TEST) < 0.2
    assert broken.losses[-1] > 10 * broken.losses[0]


def test_on_the_digits_adam_hides_it():
    for weight_decay in (0.0, 0.1):
        adam = partial(Adam, weight_decay=weight_decay)
        right, broken = on_digits(adam, 0.003), on_digits(adam, 0.003, SUM, ("loss", "gap"))
        np.testing.assert_allclose(broken.losses, right.losses, rtol=1e-5)
        assert broken.gap > 0.1


FED = feed_of(6, 2, 1)


@each(
    ("name", "call"),
    [
        ("data", lambda: train_on(Linear(3), synthetic_task(5, 3), FED)),
        ("data", lambda: train_on(Linear(3), (synthetic_task(6, 3)[0], synthetic_task(5, 3)[1]), FED)),
        ("accumulation", lambda: train_on(Linear(3), synthetic_task(6, 3), FED, accumulation=0)),
        ("accumulation", lambda: train_on(Linear(3), synthetic_task(6, 3), FED, accumulation=4, leftover="drop")),
        ("leftover", lambda: train_on(Linear(3), synthetic_task(6, 3), FED, leftover="keep")),
        ("seed", lambda: train_on(Linear(3), synthetic_task(6, 3), FED, seed=-1)),
        ("optimizer", lambda: train_on(Linear(3), synthetic_task(6, 3), FED, optimizer=SGD(0.1))),
        ("lr", lambda: train_on(Linear(3), synthetic_task(6, 3), FED, lr=lambda step: -1.0)),
        ("start", lambda: train_on(Linear(3), synthetic_task(6, 3), FED, start=np.zeros(4))),
        ("schedule", lambda: undivided(sum)),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
