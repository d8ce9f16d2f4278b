"""Do the closed forms of the wait for the slowest rank agree with draws, integrals and published numbers?"""

from math import comb, exp, factorial, gamma, inf, log, pi, sqrt

import numpy as np
import pytest

from dpbook.core import InvalidArgument
from dpbook.planning import (
    Exponential,
    Normal,
    Pareto,
    Pauses,
    Uniform,
    backup_workers,
    local_steps,
    simulate_wait,
    slowest,
)
from tests.cases import each

TIMES = [Uniform(1.0, 3.0), Exponential(0.5, 2.0), Normal(10.0, 0.5), Pareto(1.0, 3.0), Pauses(1.0, 4.0, 0.05)]
SURVIVAL = {  # the probability to take t seconds or more, as the class says in words
    Uniform(1.0, 3.0): lambda t: np.clip((3 - t) / 2, 0, 1),
    Exponential(0.5, 2.0): lambda t: np.exp(-np.maximum(t - 0.5, 0) / 2),
    Pareto(1.0, 3.0): lambda t: np.maximum(t, 1.0) ** -3.0,
    Pauses(1.0, 4.0, 0.01): lambda t: np.where(t < 1, 1.0, np.where(t < 5, 0.01, 0.0)),
}


def integrated(survival, needed, world, end):
    """Return the expected ``needed``-th of ``world`` times, by integrating the probability that fewer have arrived."""
    t = np.linspace(0, end, 400_001)
    done = 1 - survival(t)
    fewer = sum(comb(world, j) * done**j * (1 - done) ** (world - j) for j in range(needed))
    return float(np.sum((fewer[1:] + fewer[:-1]) / 2) * (t[1] - t[0]))


@each("times", list(SURVIVAL))
@each(("needed", "world"), [(1, 1), (3, 3), (2, 3), (7, 7), (5, 7), (1, 7), (20, 24)])
def test_an_arrival_is_the_integral_of_those_still_under_way(times, needed, world):
    end = 4000 if isinstance(times, Pareto) else 100
    assert times.arrival(needed, world) == pytest.approx(integrated(SURVIVAL[times], needed, world, end), rel=2e-4)


@each(("world", "expected"), [(1, 0), (2, 1 / sqrt(pi)), (3, 3 / 2 / sqrt(pi)), (10, 1.53875), (100, 2.50759)])
def test_the_largest_of_normals_is_tippetts(world, expected):
    """By hand for 2 and 3; otherwise half the mean range in L. H. C. Tippett's table (Biometrika, 1925)."""
    assert slowest(Normal(10.0, 0.5), world) == pytest.approx(10 + 0.5 * expected, abs=5e-6)
    assert Normal(10.0, 0.5).arrival(1, world) == pytest.approx(10 - 0.5 * expected, abs=5e-6)


def test_the_largest_of_a_thousand_normals_and_of_ten_thousand():
    """Half of Tippett's 6.48287 (to his last digit but one); and √(2 ln N), which is an upper bound."""
    assert slowest(Normal(10.0, 1.0), 1000) - 10 == pytest.approx(6.48287 / 2, abs=2e-4)
    assert 0.85 * sqrt(2 * log(10**4)) < slowest(Normal(10.0, 1.0), 10**4) - 10 < sqrt(2 * log(10**4))


@each("times", TIMES)
def test_what_is_drawn_has_the_mean_and_deviation_that_are_said(times):
    drawn = times.draw(np.random.default_rng(3), (200_000,))
    assert drawn.mean() == pytest.approx(times.mean, abs=4 * times.deviation / sqrt(drawn.size))
    assert drawn.std() == pytest.approx(times.deviation, rel=0.1)
    assert slowest(times, 1) == pytest.approx(times.mean)


@each("times", TIMES)
@each(("needed", "world"), [(100, 100), (97, 100), (3, 3), (6, 7)])
def test_the_simulation_agrees_with_the_closed_form_inside_its_error(times, needed, world):
    found = simulate_wait(times, world, needed=needed, rounds=2000, seed=5)
    assert found.off(times.arrival(needed, world)) < 4
    assert 0 < found.error < 0.1


def test_the_simulation_is_known_by_its_seed():
    runs = [simulate_wait(TIMES[1], 9, rounds=50, seed=seed).mean for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_backups_turn_the_harmonic_number_of_the_world_into_a_difference():
    """100 of 104 exponential times of 1 second: H(104) − H(4) for H(100)."""
    harmonic = lambda n: sum(1 / j for j in range(1, n + 1))  # noqa: E731
    found = backup_workers(Exponential(0.0, 1.0), 100, 4)
    assert found.seconds_without == pytest.approx(harmonic(100))
    assert found.seconds == pytest.approx(harmonic(104) - harmonic(4))
    assert found.machines == 1.04
    assert found.speedup == pytest.approx(5.18738 / 3.14308, abs=1e-4)
    assert found.worth == pytest.approx(found.speedup / 1.04)


def test_one_backup_hardly_helps_where_all_are_alike():
    assert backup_workers(Uniform(1.0, 1.1), 100, 1).worth < 1 < backup_workers(Pauses(1.0, 10.0, 1e-4), 100, 1).worth
    assert backup_workers(Uniform(1.0, 1.1), 100, 0).worth == 1


@each(("world", "steps"), [(3, 1), (64, 16), (1000, 4)])
def test_normal_times_wait_less_by_the_root_of_the_local_steps(world, steps):
    times = Normal(10.0, 1.0)
    assert local_steps(times, world, steps) - 10 == pytest.approx((slowest(times, world) - 10) / sqrt(steps))
    assert simulate_wait(times, world, steps=steps, rounds=400, seed=2).off(local_steps(times, world, steps)) < 4


def erlang(world, steps):
    """Return the expected largest of ``world`` sums of ``steps`` exponential times of mean 1, per step."""
    t = np.linspace(0, steps + 60, 200_001)
    late = np.exp(-t) * sum(t**j / factorial(j) for j in range(steps))
    return float(np.sum(1 - (1 - late) ** world) * (t[1] - t[0])) / steps


def test_local_steps_of_exponential_times_near_the_limit_from_above():
    """An exponential has the heavier tail, and the simulation is right even if the limit is not."""
    times, off = Exponential(0.0, 1.0), []
    for steps in (1, 4, 16, 64):
        exact = erlang(64, steps)
        assert simulate_wait(times, 64, steps=steps, rounds=1500, seed=4).off(exact) < 4
        off.append((exact - local_steps(times, 64, steps)) / (exact - 1))
    assert sorted(off, reverse=True) == off
    assert off[0] > 0.3
    assert 0 < off[-1] < 0.12


def test_a_heavy_tail_grows_as_a_power_of_the_world_and_others_as_a_logarithm():
    pareto, exponential = Pareto(1.0, 2.0), Exponential(0.0, 1.0)
    assert slowest(pareto, 4 * 10**4) / slowest(pareto, 10**4) == pytest.approx(2, rel=1e-4)
    assert slowest(pareto, 10**4) == pytest.approx(gamma(0.5) * 100, rel=1e-4)
    assert slowest(exponential, 4 * 10**4) - slowest(exponential, 10**4) == pytest.approx(log(4), abs=1e-4)


def test_a_rare_pause_is_nearly_every_step_of_a_large_world():
    assert slowest(Pauses(1.0, 1.0, 1e-3), 10_000) == pytest.approx(2 - exp(-10), abs=1e-6)


@each(
    ("call", "message"),
    [
        (lambda: Uniform(2.0, 2.0), "high must be a finite number above 2"),
        (lambda: Exponential(-1.0, 2.0), "shortest must be"),
        (lambda: Exponential(1.0, 0.0), "beyond must be"),
        (lambda: Normal(1.0, 0.0), "deviation must be"),
        (lambda: Pareto(1.0, 1.0), "shape must be a finite number above 1"),
        (lambda: Pauses(1.0, 1.0, 1.0), "probability must be"),
        (lambda: slowest(3.0, 2), "times must be Uniform, Exponential"),
        (lambda: slowest(Uniform(1, 2), 0), "world must be"),
        (lambda: backup_workers(Uniform(1, 2), 2, -1), "backups must be"),
        (lambda: local_steps(Pareto(1.0, 2.0), 3, 4), "times must be times with a finite standard deviation"),
        (lambda: simulate_wait(Uniform(1, 2), 3, needed=4), "needed must be an integer from 1 to 3"),
        (lambda: simulate_wait(Uniform(1, 2), 3, seed=-1), "seed must be"),
    ],
)
def test_what_has_no_answer_is_refused(call, message):
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        call()
    assert Pareto(1.0, 2.0).deviation == inf
