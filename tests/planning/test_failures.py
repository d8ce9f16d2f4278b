"""Do the intervals of Young and Daly agree with a run simulated event by event, and the rates with Meta's?"""

from math import expm1, sqrt

import numpy as np
import pytest

from dpbook.core import InvalidArgument
from dpbook.planning import LLAMA_3, Interruptions, Recovery
from tests.cases import each

HOUR = 3600.0
JOBS = [Recovery(5 * HOUR, 120.0, 600.0), Recovery(HOUR, 600.0, 300.0), Recovery(1000.0, 500.0, 200.0)]


def played(job, interval, failures, rng):
    """Return the seconds of each activity in a run that is simulated from event to event."""
    spent = dict.fromkeys(("goodput", "saving", "repeated", "restarting"), 0.0)
    failure, clock, state, unsaved = rng.exponential(job.between), 0.0, "training", 0.0
    lasts = {"training": interval, "saving": job.checkpoint, "restarting": job.restart}
    while failures:
        end = clock + lasts[state]
        if failure < end:
            spent["restarting" if state == "restarting" else "repeated"] += failure - clock
            spent["repeated"] += unsaved
            clock, state, unsaved = failure, "restarting", 0.0
            failure, failures = clock + rng.exponential(job.between), failures - 1
            continue
        clock = end
        if state == "saving":
            spent["goodput"] += unsaved
            spent["saving"] += job.checkpoint
            state, unsaved = "training", 0.0
        elif state == "restarting":
            spent["restarting"] += job.restart
            state = "training"
        else:
            state, unsaved = "saving", interval
    return {name: seconds / clock for name, seconds in spent.items()}


def best(job):
    """Return the interval with the largest goodput, from its equation (1 − τ/M) e^((τ + δ)/M) = 1."""
    low, high = 0.0, job.between
    for _ in range(100):
        middle = (low + high) / 2
        falls = (1 - middle / job.between) * (1 + expm1((middle + job.checkpoint) / job.between)) < 1
        low, high = (low, middle) if falls else (middle, high)
    return low


@each("job", JOBS)
def test_the_shares_are_those_of_a_run_played_event_by_event(job):
    found, shares = played(job, job.daly, 20_000, np.random.default_rng(11)), job.shares(job.daly)
    assert sum(shares) == pytest.approx(1)
    assert shares._asdict() == pytest.approx(found, abs=0.01)


@each("job", JOBS)
@each("factor", [0.3, 1, 3])
def test_the_simulation_agrees_inside_its_error(job, factor):
    interval = factor * job.daly
    found = job.simulate(interval, failures=50_000, seed=7)
    assert found.off(job.shares(interval).goodput) < 4
    assert 0 < found.error < 0.01


def test_the_best_interval_of_a_simulated_grid_is_dalys():
    """The same failures for every interval, in steps of a seventh; more failures would not separate two neighbours."""
    job = JOBS[1]
    grid = job.daly * 1.15 ** np.arange(-6, 7)
    goodput = [job.simulate(interval, failures=200_000, seed=1).mean for interval in grid]
    assert abs(int(np.argmax(goodput)) - 6) <= 1


@each(("job", "young", "daly"), [(JOBS[0], 0.08, 1e-5), (JOBS[1], 0.25, 0.002), (JOBS[2], 0.85, 0.01)])
def test_dalys_interval_is_the_best_and_youngs_nearly_where_checkpoints_are_cheap(job, young, daly):
    """Distance of both intervals from the best one."""
    assert abs(job.daly / best(job) - 1) < daly
    assert daly < abs(job.young / best(job) - 1) < young
    assert job.shares(job.daly).goodput >= job.shares(job.young).goodput


def test_a_checkpoint_dearer_than_two_failures_is_taken_once_per_failure():
    assert Recovery(100.0, 200.0, 1.0).daly == 100
    assert Recovery(100.0, 199.9, 1.0).daly == pytest.approx(best(Recovery(100.0, 199.9, 1.0)), rel=0.2)


def test_a_restart_that_takes_no_time_has_no_share():
    assert str(Recovery(3600.0, 60.0, 0.0).shares(600.0).restarting) == "0.0"  # and not -0.0


def test_young_by_hand():
    assert JOBS[0].young == pytest.approx(sqrt(2 * 120 * 18_000))
    assert JOBS[0].young == pytest.approx(2078.46, abs=0.01)


def test_metas_published_interruptions():
    """419 in 54 days are one in 3.1 hours of 16,384 GPUs, or one in 5.8 years of one GPU."""
    assert LLAMA_3.between(16_384) / HOUR == pytest.approx(54 * 24 / 419)
    assert LLAMA_3.per_gpu / HOUR / 24 / 365.25 == pytest.approx(5.78, abs=0.01)
    assert LLAMA_3.per_day(10_000) == pytest.approx(419 / 54 * 10_000 / 16_384)
    assert round(LLAMA_3.per_day(10_000), 2) == 4.74


@each(
    ("call", "message"),
    [
        (lambda: Recovery(0.0, 1.0, 1.0), "between must be"),
        (lambda: Recovery(1.0, 0.0, 1.0), "checkpoint must be"),
        (lambda: Recovery(1.0, 1.0, -1.0), "restart must be"),
        (lambda: JOBS[0].shares(0.0), "interval must be"),
        (lambda: JOBS[0].simulate(-1.0), "interval must be"),
        (lambda: JOBS[0].simulate(60.0, seed=-1), "seed must be"),
        (lambda: Interruptions(0, 1, 1, ""), "count must be"),
        (lambda: LLAMA_3.per_day(0), "gpus must be"),
    ],
)
def test_what_has_no_answer_is_refused(call, message):
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        call()
