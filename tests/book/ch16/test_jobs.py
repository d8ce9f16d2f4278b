"""The jobs of task 16.2 beside what is known otherwise: the price of a ring, and the least value of a product."""

from math import sqrt

import numpy as np

from dpbook.book.ch16.judge import MIN_GAIN, PERIODS, drawn_jobs
from dpbook.collectives import Link, cost, ring

JOBS = list(drawn_jobs(np.random.default_rng(0)))


def test_a_meeting_costs_what_a_ring_is_priced_at():
    for job in JOBS[1:]:
        priced = cost(ring(job.ranks), job.nbytes, Link(job.alpha, 1 / job.beta)).seconds
        assert np.isclose(job.average_seconds, priced, rtol=1e-6)


def test_the_best_period_is_that_of_calculus():
    """(a + bH)(c + R/H) has its least value (√(ac) + √(bR))² at H = √(aR / (bc))."""
    for job in JOBS[1:]:
        least = (sqrt(job.start * job.compute) + sqrt(job.slope * job.average_seconds)) ** 2
        assert least <= job.best() <= 1.002 * least
        period = sqrt(job.start * job.average_seconds / (job.slope * job.compute))
        assert min(max(period / each, each / period) for each in PERIODS) > 1.2  # none that was measured will do
        assert job.best(PERIODS) >= MIN_GAIN * job.best()


def test_inside_a_machine_every_step_is_a_meeting():
    assert JOBS[0].best() == JOBS[0].seconds(1)
