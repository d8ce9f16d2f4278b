"""Methods: does the exact one count what it sends, and does an object serve more than one run?"""

from collections.abc import Iterator

import numpy as np
import pytest

from dpbook import replicas
from dpbook.collectives import tree
from dpbook.core import InvalidArgument

DATA = replicas.synthetic_task(examples=48)
MODEL = replicas.MLP(16, 3)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_the_exact_method_counts_what_a_ring_sends(world: int) -> None:
    run = replicas.train(MODEL, DATA, world, steps=3, meters=())
    each = 2 * (world - 1) / world * MODEL.size * 8  # bytes of float64, Patarasuk and Yuan 2009
    assert run.sent.shape == (3, world)
    assert np.abs(run.sent - each).max() <= 2 * (world - 1) * 8
    assert run.sent.sum() == 3 * 2 * (world - 1) * MODEL.size * 8
    assert run.rounds.tolist() == [2 * (world - 1)] * 3


def test_what_a_function_sends_is_not_known() -> None:
    run = replicas.train(MODEL, DATA, 3, lambda rows: np.tile(rows.sum(axis=0), (3, 1)), steps=2)
    assert np.isnan(run.sent).all()
    assert np.isnan(run.rounds).all()


class Silent(replicas.Method):
    """A method that sends no messages."""

    def steps(self, params: replicas.Array, group: replicas.RankGroup) -> Iterator[replicas.Step]:
        while True:
            params = replicas.update(params, group.gradients(params), group.optimizers)
            yield replicas.Step(params)


def test_a_method_of_ones_own_trains_and_serves_again() -> None:
    method = Silent()
    first, again = (replicas.train(MODEL, DATA, 3, tree(3), method=method, steps=4) for _ in range(2))
    assert np.array_equal(first.params, again.params)
    assert not first.sent.any()
    assert np.isnan(first.gaps).all()
    x, y = (part[16:32] for part in DATA)
    alone = replicas.train(MODEL, (x, y), 1, steps=4)
    assert np.array_equal(first.params[1], alone.params[0])
    assert first.drift > 0


def test_a_method_is_none_of_something_else() -> None:
    with pytest.raises(InvalidArgument, match="method"):
        replicas.train(MODEL, DATA, 2, method="exact")  # type: ignore[arg-type]


class Broken(replicas.Method):
    def __init__(self, *given: object) -> None:
        self.given = given

    def steps(self, params: replicas.Array, group: replicas.RankGroup) -> Iterator[replicas.Step]:
        return iter(self.given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", [None, np.zeros((2, MODEL.size)), replicas.Step(np.zeros(MODEL.size)), replicas.Step([[0.0]])]
)
def test_a_method_whose_steps_are_none_or_end_is_named(given: object) -> None:
    for method in (Broken(), Broken(given)):
        with pytest.raises(InvalidArgument, match=r"^method must be one that yields .*Broken"):
            replicas.train(MODEL, DATA, 2, method=method, steps=2)


def test_a_method_that_writes_into_its_parameters_leaves_the_start_alone() -> None:
    class InPlace(replicas.Method):
        def steps(self, params: replicas.Array, group: replicas.RankGroup) -> Iterator[replicas.Step]:
            while True:
                params -= group.gradients(params)
                yield replicas.Step(params)

    start = np.ones((2, MODEL.size))
    replicas.train(MODEL, DATA, 2, method=InPlace(), steps=2, start=start)
    assert (start == 1).all()


def test_an_all_reduce_for_another_world_is_refused_by_a_method_that_needs_none() -> None:
    with pytest.raises(InvalidArgument, match="all_reduce must be a schedule for a world of 3"):
        replicas.train(MODEL, DATA, 3, tree(4), method=Silent(), steps=2)


def test_everyone_gets_all_payloads_of_a_gathering_and_it_is_counted() -> None:
    group = replicas.RankGroup([replicas.SGD(1.0) for _ in range(3)], tree(3))
    payloads = [b"a", b"bc", b""]
    assert group.all_gather(payloads) == [payloads] * 3
    assert group.sent.tolist() == [1 + 0, 2 + 1, 0 + 2]  # its own, and that of the rank before it
    assert group.rounds == 2
