"""Is a step without some ranks the exact gradient of the examples that the others read?"""

from functools import partial

import numpy as np
import pytest

from dpbook import collectives, replicas
from dpbook.core import InvalidArgument
from dpbook.replicas.inexact import Backup, Lost, all_reduce_among
from tests.cases import each

DATA = replicas.synthetic_task(examples=60)
MODEL = replicas.MLP(16, 3)
SIZE = MODEL.size * 8
train = partial(replicas.train, MODEL, DATA, lr=0.05)
UNEVEN = {3: [30, 10, 20], 4: [30, 10, 5, 15], 5: [20, 20, 10, 7, 3]}


def gradient_of(ranks, sizes):
    """Return the gradient at the initial parameters of all examples that ``ranks`` read."""
    ends = np.cumsum([0, *sizes])
    chosen = np.concatenate([np.arange(ends[r], ends[r + 1]) for r in ranks])
    return MODEL.gradient(MODEL.init(np.random.default_rng(0)), *(part[chosen] for part in DATA))


def step_of(run):
    """Return the gradient of every replica's first step."""
    return (MODEL.init(np.random.default_rng(0)) - run.params) / 0.05


@each("world", [3, 4, 5])
@each("broadcast", [False, True])
def test_the_sum_over_some_ranks_contains_no_others(world, broadcast):
    for ranks in [(0, 1), (0, world - 1), (world - 1,), tuple(range(1, world)), tuple(range(world))]:
        schedule = all_reduce_among(world, ranks, broadcast=broadcast)
        collectives.verify(schedule)
        receivers = range(world) if broadcast else ranks
        assert all(holding == dict.fromkeys(receivers, frozenset(ranks)) for holding in schedule.after)
        sent = collectives.count(schedule, MODEL.size, 8).total_bytes
        assert sent == (2 * (len(ranks) - 1) + broadcast * (world - len(ranks))) * SIZE


@each("world", [3, 4, 5])
@each("uneven", [False, True])
def test_the_survivors_average_is_the_gradient_of_what_they_read(world, uneven):
    sizes = UNEVEN[world] if uneven else [60 // world] * world
    for rank in range(world):
        run = train(world, sizes=sizes, steps=1, method=Lost(rank, 0))
        exact = gradient_of([other for other in range(world) if other != rank], sizes)
        assert np.abs(step_of(run) - exact).max() < 1e-13
        assert np.abs(exact - gradient_of(range(world), sizes)).max() > 1e-3


@each("world", [3, 4, 5])
def test_a_loss_changes_what_comes_after_it_and_nothing_before(world):
    rank = world - 2
    exact, lost = train(world, steps=6), train(world, steps=6, method=Lost(rank, 3))
    assert (lost.gaps < 1e-12).tolist() == [True] * 3 + [False] * 3
    assert lost.losses[:4].tolist() == exact.losses[:4].tolist()
    assert lost.losses[4] != exact.losses[4]
    assert lost.drift == 0
    assert lost.sent[:3].tolist() == exact.sent[:3].tolist()
    assert lost.sent[3:, rank].tolist() == [0, 0, 0]
    assert lost.sent[3:].sum(axis=1).tolist() == [2 * (world - 2) * SIZE] * 3
    assert lost.rounds.tolist() == [2 * (world - 1)] * 3 + [2 * (world - 2)] * 3


def test_the_world_as_divisor_makes_the_step_shorter():
    right, wrong = (train(4, steps=1, method=Lost(0, 0, divide_by=by)) for by in ("survivors", "world"))
    assert np.abs(step_of(wrong) - 3 / 4 * step_of(right)).max() < 1e-13


@each("world", [3, 4, 5])
@each("uneven", [False, True])
def test_those_who_came_are_averaged_and_all_ranks_know(world, uneven):
    sizes = UNEVEN[world] if uneven else [60 // world] * world
    alone = [gradient_of([rank], sizes) for rank in range(world)]
    seen = set()
    for seed in range(24):
        run = train(world, sizes=sizes, steps=1, method=Backup(world - 1, seed=seed))
        assert run.drift == 0
        seen.add(next(r for r, own in enumerate(alone) if np.abs(step_of(run)[0] - own).max() < 1e-13))
    assert seen == set(range(world))
    two = train(world, sizes=sizes, steps=1, method=Backup(world - 2, seed=1))
    pairs = [gradient_of([a, b], sizes) for a in range(world) for b in range(a)]
    assert min(np.abs(step_of(two) - pair).max() for pair in pairs) < 1e-13


@each("world", [3, 4, 5])
def test_without_a_spare_it_is_the_exact_loop(world):
    exact, backup = train(world, steps=4), train(world, steps=4, method=Backup(0))
    assert np.array_equal(exact.params, backup.params)
    assert exact.sent.tolist() == backup.sent.tolist()
    assert exact.rounds.tolist() == backup.rounds.tolist()


def test_the_ranks_who_come_send_for_themselves_and_for_the_late():
    run = train(5, steps=40, method=Backup(2, seed=4))
    assert run.sent.sum(axis=1).tolist() == [(2 * (3 - 1) + 2) * SIZE] * 40
    assert run.rounds.tolist() == [2 * (3 - 1) + 1] * 40
    assert (run.sent == 0).sum(axis=1).tolist() == [2] * 40
    assert run.sent.max() <= (2 * 2 / 3 + 2 / 3) * SIZE + 6 * 8  # those who came share in telling
    late = (run.sent == 0).sum(axis=0)
    assert late.sum() == 80
    assert np.abs(late - 16).max() < 4 * (40 * 0.4 * 0.6) ** 0.5


def test_a_step_for_which_only_ranks_without_examples_came_goes_nowhere():
    run = train(3, sizes=[0, 0, 60], steps=1, method=Lost(2, 0))
    assert not step_of(run).any()


@each(
    "make",
    [
        lambda: Backup(-1),
        lambda: train(3, steps=1, method=Backup(3)),
        lambda: train(3, steps=1, method=Lost(3, 0)),
        lambda: train(1, steps=1, method=Lost(0, 0)),
        lambda: Lost(0, -1),
        lambda: Lost(0, 0, divide_by="hope"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(InvalidArgument):
        make()
