"""Are signal and noise estimated without bias, from a step's gradients alone?"""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch04 import NoiseScale, example_gradients, noise_scale, smooth, variance_by_batch
from dpbook.replicas import MLP, Sampler, cross_entropy, digits, feed, local_gradients, split, synthetic_task, train
from tests.cases import each, refuses

WORLDS = [*range(2, 10), 16]


# The estimators


@given(st.integers(2, 9), st.integers(1, 6), st.integers(1, 40), st.integers(0, 1000))
def test_noise_is_the_spread_of_the_local_gradients(world, size, batch, seed):
    """The same by another formula: b times the ranks' sample variance, summed; and the signal is what is left."""
    gradients = np.random.default_rng(seed).standard_normal((world, size))
    estimate = noise_scale(gradients, batch)
    noise = batch * np.trace(np.atleast_2d(np.cov(gradients.T)))
    assert estimate.noise == pytest.approx(noise, rel=1e-9)
    signal = (gradients.mean(axis=0) ** 2).sum() - noise / (batch * world)
    assert estimate.signal == pytest.approx(signal, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("world", "batch"), [(2, 1), (3, 1), (2, 2), (3, 2), (2, 3)])
def test_without_bias_over_all_orders_of_a_small_data_set(world, batch):
    """Every way of dealing six examples out, averaged: tr Σ of the set, and |G|² less what the set's own mean adds."""
    rng = np.random.default_rng(world)
    examples = rng.integers(-9, 10, (6, 3)).astype(float)
    estimates = []
    for order in permutations(range(6)):
        drawn = examples[list(order[: world * batch])].reshape(world, batch, 3)
        estimates.append(noise_scale(drawn.mean(axis=1), batch))
    noise = examples.var(axis=0, ddof=1).sum()
    assert np.mean([each.noise for each in estimates]) == pytest.approx(noise, rel=1e-12)
    signal = (examples.mean(axis=0) ** 2).sum() - noise / 6
    assert np.mean([each.signal for each in estimates]) == pytest.approx(signal, rel=1e-10)


@each("world", WORLDS)
def test_without_bias_on_gaussian_gradients(world):
    rng = np.random.default_rng(world)
    mean, root = rng.standard_normal(5), rng.standard_normal((5, 5))
    signal, noise = mean @ mean, np.trace(root @ root.T)
    batch, trials = 4, 4000
    draws = mean + rng.standard_normal((trials, world, 5)) @ root.T / np.sqrt(batch)
    estimates = [noise_scale(gradients, batch) for gradients in draws]
    for values, truth in (([e.signal for e in estimates], signal), ([e.noise for e in estimates], noise)):
        error = np.std(values) / np.sqrt(trials)
        assert abs(np.mean(values) - truth) < 4 * error
        assert error < 0.1 * truth
    *_, smoothed = smooth(estimates)
    assert smoothed.scale == pytest.approx(noise / signal, rel=0.25)


def test_equal_gradients_are_all_signal():
    estimate = noise_scale(np.tile([3.0, 4.0], (4, 1)), 8)
    assert (estimate.signal, estimate.noise, estimate.scale) == (25.0, 0.0, 0.0)


def test_float32_gradients_are_squared_in_float64():
    gradients = np.full((2, 3), 1e-30, np.float32)  # whose squares float32 cannot hold
    assert noise_scale(gradients, 2).signal == pytest.approx(3e-60, rel=1e-6, abs=0)


# On the digits


@pytest.fixture(scope="module")
def network():
    training, _ = split(*digits())
    model = MLP(64, 32, 10, cross_entropy)
    return model, training, model.init(np.random.default_rng(0))


def test_example_gradients_average_to_the_gradient(network):
    model, (x, y), params = network
    each = example_gradients(model, params, x[:50], y[:50])
    assert each.shape == (50, model.size)
    np.testing.assert_allclose(each.mean(axis=0), model.gradient(params, x[:50], y[:50]), rtol=0, atol=1e-15)


@pytest.mark.parametrize("steps", [0, 30])
def test_free_estimate_agrees_with_the_examples_own_gradients(network, steps):
    """At the start 74 examples, after 30 steps 158; smoothed over twenty epochs of six steps it is 2 and 3 % off."""
    model, (x, y), params = network
    if steps:
        params = train(model, (x, y), 1, lr=0.5, steps=steps, global_batch=240).params[0]
    direct = noise_scale(example_gradients(model, params, x, y), 1)
    fed = feed([Sampler(1440, 8, rank, seed=5) for rank in range(8)], 1440, 30, epochs=20)
    estimates = [
        noise_scale(local_gradients(model, np.tile(params, (8, 1)), [(x[own], y[own]) for own in local]), 30)
        for epoch in range(20)
        for local in fed.batches(epoch)
    ]
    *_, smoothed = smooth(estimates)
    assert smoothed.noise == pytest.approx(direct.noise, rel=0.03)
    assert smoothed.signal == pytest.approx(direct.signal, rel=0.06)
    assert smoothed.scale == pytest.approx(direct.scale, rel=0.08)


# Smoothing


def test_smoothing_averages_signal_and_noise_not_their_quotients():
    estimates = [NoiseScale(3.0, 10.0), NoiseScale(-1.0, 10.0)]
    first, second = smooth(estimates)
    assert first == estimates[0]
    assert second == NoiseScale(1.0, 10.0)
    assert second.scale == 10
    assert np.mean([each.scale for each in estimates]) < 0  # which no batch size can be


def test_scale_without_signal_is_infinite():
    assert NoiseScale(0.0, 1.0).scale == float("inf")


def test_repr_gives_the_scale_in_examples():
    assert repr(NoiseScale(0.1, 7.4)) == "NoiseScale(|G|² 0.1, tr Σ 7.4: 74 examples)"


# Variance falls by N, standard deviation by its root


def test_measured_slopes(network):
    model, (x, y), params = network
    each = example_gradients(model, params, x[:300], y[:300])
    batches = [1, 4, 16, 64, 256]
    variances = variance_by_batch(each, batches)
    assert np.polyfit(np.log(batches), np.log(variances), 1)[0] == pytest.approx(-1, abs=0.03)
    assert np.polyfit(np.log(batches), np.log(np.sqrt(variances)), 1)[0] == pytest.approx(-0.5, abs=0.015)
    np.testing.assert_allclose(variances, each.var(axis=0).sum() / batches, rtol=0.15)


def test_variance_of_known_gradients():
    """Half are −1, half +1: a batch of N has variance 1 / N. 20,000 draws know it to 1 %."""
    gradients = np.array([[-1.0], [1.0]])
    variances = variance_by_batch(gradients, [1, 2, 5], draws=20_000, rng=np.random.default_rng(1))
    np.testing.assert_allclose(variances, [1, 1 / 2, 1 / 5], rtol=0.04)


def test_variances_repeat():
    gradients = np.random.default_rng(0).standard_normal((10, 3))
    assert variance_by_batch(gradients, [2, 3]).tolist() == variance_by_batch(gradients, [2, 3]).tolist()


X, Y = synthetic_task(4, 3)


test_bad_input_is_named = refuses(
    (lambda: noise_scale(np.ones((1, 3)), 4), "gradients"),
    (lambda: noise_scale(np.ones(3), 4), "gradients"),
    (lambda: noise_scale(np.ones((2, 3)), 0), "local_batch"),
)
