"""Do the scaling rules hold where they should, and break where they are said to?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.replicas import (
    Adam,
    Linear,
    adam_scaling,
    efficient_lr,
    linear_scaling,
    square_root_scaling,
    synthetic_task,
    train,
    warm_up,
)
from tests.cases import each

# The rules


def test_rules_in_round_numbers():
    assert linear_scaling(0.125, 256, 64) == 0.5
    assert square_root_scaling(0.125, 256, 64) == 0.25
    assert linear_scaling(0.5, 16, 64) == 0.125


@given(st.floats(1e-6, 10), st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
def test_rules_can_be_applied_in_two_steps_as_in_one(lr, a, b, c):
    for rule in (linear_scaling, square_root_scaling):
        assert rule(rule(lr, b, a), c, b) == pytest.approx(rule(lr, c, a), rel=1e-12)


# Linear scaling on a quadratic loss

DATA = synthetic_task(4096, 16)
MODEL = Linear(16)
COLUMNS = np.hstack([DATA[0], np.ones((4096, 1))])
HESSIAN = 2 * COLUMNS.T @ COLUMNS / 4096
CURVATURE = float(np.linalg.eigvalsh(HESSIAN)[-1])  # 2.20
MINIMUM = np.linalg.lstsq(COLUMNS, DATA[1], rcond=None)[0].ravel()
START = MODEL.init(np.random.default_rng(0))


@each("lr", [0.001, 0.01, 0.1])
@each("k", [2, 3, 8, 20])
def test_one_long_step_ends_within_the_bound_of_k_short_ones(k, lr):
    short = train(MODEL, DATA, 1, steps=k, lr=lr).params[0]
    long = train(MODEL, DATA, 1, steps=1, lr=linear_scaling(lr, k, 1)).params[0]
    apart = np.linalg.norm(short - long)
    x = lr * CURVATURE
    assert x < 1  # where the bound (1 − x)^k − (1 − kx) ≤ k (k − 1) / 2 · x² holds
    assert 0 < apart <= k * (k - 1) / 2 * x**2 * np.linalg.norm(START - MINIMUM)


def run(k, lr=0.01):
    """256 / k updates over the same 4,096 examples in the same order, 16 k at a time."""
    return train(MODEL, DATA, min(k, 16), steps=256 // k, lr=linear_scaling(lr, 16 * k, 16), global_batch=16 * k)


def test_linear_scaling_follows_the_small_batch_up_to_its_limit():
    small = run(1)
    moved = np.linalg.norm(small.params[0] - START)

    def off(k):
        return np.linalg.norm(run(k).params[0] - small.params[0]) / moved

    assert abs(CURVATURE - 2.2) < 0.01
    assert [off(k) < 0.02 for k in (2, 4, 8, 16)] == [True] * 4  # 0.001, 0.003, 0.006, 0.012
    assert 0.01 * CURVATURE * 64 < 2 < 0.01 * CURVATURE * 128
    assert off(64) < 0.1  # 0.06
    assert off(128) > 1  # 2.6: beyond the limit
    assert run(128).final_loss > 10 * small.final_loss


def test_beyond_two_over_the_curvature_training_diverges():
    stable, unstable = (train(MODEL, DATA, 1, steps=100, lr=factor / CURVATURE) for factor in (1.9, 2.1))
    assert stable.final_loss < stable.losses[0]
    assert unstable.final_loss > 1000 * unstable.losses[0]


# Adam


def spread(adam, steps, batch, rng):
    """Variance of 4,000 parameters that see nothing but noise."""
    params = np.zeros(4000)
    for _ in range(steps):
        params = adam.step(params, rng.standard_normal(4000) / np.sqrt(batch))
    return params.var()


def test_the_square_root_rule_keeps_adams_noise_and_other_rules_do_not():
    """800 batches of 1 against 200 of 4. The variance is known to about 2 % from 4,000 parameters."""
    rng = np.random.default_rng(0)
    base = spread(Adam(0.001, beta1=0.9, beta2=0.99), 800, 1, rng)
    scaled = spread(adam_scaling(Adam(0.001, beta1=0.9, beta2=0.99), 4, 1), 200, 4, rng)
    unscaled = spread(Adam(0.001, beta1=0.9, beta2=0.99), 200, 4, rng)
    linear = spread(Adam(0.004, beta1=0.6, beta2=0.96), 200, 4, rng)
    assert scaled / base == pytest.approx(1, abs=0.1)
    assert unscaled / base == pytest.approx(1 / 4, abs=0.05)
    assert linear / base == pytest.approx(4, abs=0.5)


def test_adam_scaling_in_round_numbers():
    scaled = adam_scaling(Adam(0.001, beta1=0.875, beta2=0.9375, epsilon=1e-8, weight_decay=0.1), 256, 64)
    assert (scaled.lr, scaled.beta1, scaled.beta2) == (0.002, 0.5, 0.75)
    assert (scaled.epsilon, scaled.weight_decay) == (5e-9, 0.2)
    assert scaled.lr * scaled.weight_decay == pytest.approx(4 * 0.001 * 0.1)  # per update, of which there are a quarter


def test_adam_scaling_the_same_batch_changes_nothing():
    assert repr(adam_scaling(Adam(0.5, beta1=0.5, beta2=0.75), 8, 8)) == repr(Adam(0.5, beta1=0.5, beta2=0.75))


# Warm-up


def test_warm_up_takes_a_twentieth_of_the_steps():
    rate = warm_up(0.5, 100)
    assert [rate(step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert {rate(step) for step in range(4, 100)} == {0.5}


def test_warm_up_grows_from_the_small_batchs_rate():
    rate = warm_up(0.5, 8, share=0.5, start=0.1)
    assert [rate(step) for step in range(6)] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.5, 0.5])


@given(st.floats(1e-3, 10), st.integers(1, 500), st.floats(0, 1), st.floats(0, 1))
def test_warm_up_never_falls_and_ends_at_the_peak(peak, steps, share, fraction):
    rates = [warm_up(peak, steps, share, fraction * peak)(step) for step in range(steps)]
    assert (np.diff(rates) >= 0).all()
    assert rates[-1] == peak
    assert rates[0] > 0
    assert sum(rate < peak for rate in rates) <= max(round(share * steps) - 1, 0)


def test_no_warm_up_is_the_peak_at_once():
    assert warm_up(0.3, 10, share=0)(0) == 0.3


# What the noise allows


@pytest.mark.parametrize("batch", [1, 10, 100, 10_000])
def test_efficient_lr_is_the_best_of_all_steps_on_a_quadratic(batch):
    """Loss ½ λ|w|², gradient λw plus noise: the expected loss after a step is known, and searched over a grid."""
    curvature, w, noise = 4.0, np.array([0.5, -1.0]), 80.0  # tr Σ
    signal = float(((curvature * w) ** 2).sum())
    rates = np.linspace(0, 0.5, 5001)
    after = ((1 - rates[:, None] * curvature) ** 2 * w**2).sum(axis=1) + rates**2 * noise / batch
    best = rates[after.argmin()]
    assert efficient_lr(1 / curvature, batch, noise / signal) == pytest.approx(best, abs=1e-4)


def test_efficient_lr_is_linear_far_below_the_noise_scale_and_constant_far_above():
    assert efficient_lr(1.0, 2, 1e6) / efficient_lr(1.0, 1, 1e6) == pytest.approx(2, rel=1e-5)
    assert efficient_lr(1.0, 2 * 10**6, 1.0) / efficient_lr(1.0, 10**6, 1.0) == pytest.approx(1, rel=1e-5)
    assert efficient_lr(1.0, 500, 500.0) == 0.5


@each(
    ("name", "call"),
    [
        ("lr", lambda: linear_scaling(0, 2, 1)),
        ("lr", lambda: square_root_scaling(float("nan"), 2, 1)),
        ("lr", lambda: linear_scaling("fast", 2, 1)),
        ("batch", lambda: linear_scaling(1, 0, 1)),
        ("base_batch", lambda: square_root_scaling(1, 2, 0.5)),
        ("batch", lambda: adam_scaling(Adam(0.001), 11, 1)),
        ("peak", lambda: warm_up(-1, 10)),
        ("steps", lambda: warm_up(1, 0)),
        ("share", lambda: warm_up(1, 10, 1.5)),
        ("start", lambda: warm_up(1, 10, start=2)),
        ("step", lambda: warm_up(1, 10)(-1)),
        ("largest", lambda: efficient_lr(0, 1, 1)),
        ("batch", lambda: efficient_lr(1, 0, 1)),
        ("noise_scale", lambda: efficient_lr(1, 1, -1)),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
