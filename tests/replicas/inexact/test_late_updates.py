"""Gradients of older parameters: are they as old as they may be, and do they converge where theory says?"""

from collections import Counter
from functools import partial
from itertools import islice

import numpy as np
import pytest

from dpbook import replicas
from dpbook.book import ch01
from dpbook.core import InvalidArgument
from dpbook.replicas.inexact import Asynchronous, Parabolas, Stale, largest_stable_rate, updates
from tests.cases import each

DATA = replicas.synthetic_task(examples=120)
MODEL = replicas.MLP(16, 3)
train = partial(replicas.train, MODEL, DATA, lr=0.05, global_batch=60, meters=("drift", "gap"))
ONES, ZEROS = np.ones(6), np.zeros(6)


def on_a_parabola(delay: int, rate: float, steps: int) -> float:
    run = replicas.train(Parabolas(), (ONES, ZEROS), 2, method=Stale(delay), lr=rate, steps=steps, meters=())
    return abs(float(run.params[0, 0]))


@each("delay", range(5))
def test_a_delay_is_stable_up_to_the_known_rate_and_not_beyond(delay):
    limit = largest_stable_rate(delay)
    at_once = (2.0, 1.0, 0.6180339887, 0.4450418679, 0.3472963553)  # 2, 1, 1/φ and so on: 2 cos(π d / (2 d + 1))
    assert limit == pytest.approx(at_once[delay])
    roots = np.abs(np.roots([1, -1, *[0] * (delay - 1), limit] if delay else [1, limit - 1]))
    assert roots.max() == pytest.approx(1)  # of z^(d+1) − z^d + lr λ, from w(t+1) = w(t) − lr λ w(t−d)
    assert on_a_parabola(delay, 0.95 * limit, 300) < 0.2
    assert on_a_parabola(delay, 1.05 * limit, 300) > 2


@each("delay", range(4))
def test_a_stale_run_takes_the_path_of_chapter_1(delay):
    path = ch01.descend(0.4, delay, 12)
    assert abs(path[-1]) == pytest.approx(on_a_parabola(delay, 0.4, 12), abs=1e-15)


@each("world", [3, 4, 5])
def test_no_delay_is_the_exact_loop_and_a_delay_sends_as_much(world):
    exact, none, late = (train(world, steps=5, method=m) for m in (replicas.Exact(), Stale(0), Stale(2)))
    assert np.array_equal(exact.params, none.params)
    assert np.array_equal(exact.sent, late.sent)
    assert late.drift == 0
    assert late.gaps[0] < 1e-12 < 1e-4 < late.gaps[1:].min()


TIMES = ((1.0, 1.0, 1.0), (1.0, 2.0, 4.0, 1.0), (1.0, 1.0, 1.0, 1.0, 30.0))


@each("times", TIMES)
@each("bound", [0, 1, 2, 3, 4, 7, 40])
@each("jitter", [0.0, 0.5])
def test_staleness_keeps_its_bound(times, bound, jitter):
    world = len(times)
    made = list(islice(updates(world, bound, times=times, jitter=jitter, seed=3), 600))
    taken, latest = [0] * world, made[-1].time
    for done, update in enumerate(made):
        assert update.staleness == done - taken[update.rank] <= bound
        taken[update.next_rank] = done + 1
    at_work = min(world, bound + 1)
    assert np.mean([update.staleness for update in made]) == pytest.approx(at_work - 1, abs=world * 41 / 600)
    assert [update.time for update in made] == sorted(update.time for update in made)
    if bound < world:
        assert max(update.staleness for update in made) == bound
    if bound < world - 1:  # ranks take turns
        assert len(set(Counter(update.rank for update in made).values())) == 1
    if bound == 0 and jitter == 0:
        assert latest == pytest.approx(600 * np.mean(times))  # one after another: nothing is done at the same time


@each("jitter", [0.2, 0.5])
def test_jitter_leaves_the_mean_time_what_it_was(jitter):
    *_, last = islice(updates(3, 0, jitter=jitter, seed=5), 4000)
    assert last.time == pytest.approx(4000, abs=4 * np.sqrt(4000 * np.expm1(jitter**2)))  # a log-normal's variance


def test_a_slow_rank_is_waited_for_where_the_bound_asks_it():
    """Three ranks of time 1 and one of 10: in 10, thirty others would come before it; the bound lets 8."""
    free, bound = (list(islice(updates(4, b, times=(1, 1, 1, 10)), 90)) for b in (1000, 8))
    assert max(update.staleness for update in free) > 25
    assert max(update.staleness for update in bound) == 8
    assert free[30].time == 10
    slow = [update.time for update in bound if update.rank == 3]
    assert slow == [10 * (k + 1) for k in range(len(slow))]
    assert bound[-1].time == pytest.approx(90 / 9 * 10, abs=10)  # 9 updates in every 10: its own, and the bound


def test_equal_times_without_jitter_are_a_round_robin():
    made = list(islice(updates(4, 3), 40))
    assert [update.rank for update in made] == [0, 1, 2, 3] * 10
    assert [update.staleness for update in made] == [0, 1, 2] + [3] * 37
    assert made[-1].time == 10


@each("world", [3, 4, 5])
@each("optimizer", [replicas.SGD, replicas.Adam])
def test_without_staleness_it_is_sequential_training_on_smaller_batches(world, optimizer):
    late = train(world, steps=6, optimizer=optimizer, method=Asynchronous(0))
    alone = replicas.train(
        MODEL, DATA, 1, global_batch=60 // world, steps=6 * world, lr=0.05, optimizer=optimizer, meters=()
    )
    assert np.array_equal(late.params[0], alone.params[0])
    assert np.isnan(late.gaps).all()
    assert late.drift > 0


def test_every_gradient_is_of_the_parameters_that_its_rank_took():
    """On a parabola a gradient is the curvature times the parameter that it was taken at: the whole run by hand."""
    method, rate, world, curvatures = Asynchronous(5, times=(1, 2, 3), jitter=0.4, seed=2), 0.2, 3, (1.0, 0.5, 1.5)
    run = replicas.train(Parabolas(), (np.repeat(curvatures, 2), ZEROS), world, method=method, lr=rate, steps=10)
    path = [1.0]
    for update, curvature in zip(islice(method.updates(world), 30), curvatures * 10, strict=True):
        path.append(path[-1] - rate * curvature * path[-1 - update.staleness])
    assert run.params[0, 0] == pytest.approx(path[-1], abs=1e-15)
    assert set(run.params[1:, 0].round(12)) <= set(np.round(path, 12))


def test_a_server_sends_parameters_and_the_others_gradients():
    run = train(4, steps=5, method=Asynchronous(3, jitter=0))  # each rank once a step
    one = MODEL.size * 8
    assert run.sent.tolist() == [[3 * one, one, one, one]] * 5
    assert run.rounds.tolist() == [6] * 5


def test_a_seed_repeats_a_run_and_another_does_not():
    first, again, other = (train(4, steps=5, method=Asynchronous(6, seed=s)).params for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@each(
    "make",
    [
        lambda: Stale(-1),
        lambda: Asynchronous(-1),
        lambda: Asynchronous(1, jitter=-1),
        lambda: train(4, steps=1, method=Asynchronous(1, times=(1, 1, 1))),
        lambda: train(3, steps=1, method=Asynchronous(1, times=(1, 0, 1))),
        lambda: train(3, steps=1, method=Asynchronous(1, times=1)),
        lambda: largest_stable_rate(-1),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(InvalidArgument):
        make()
