"""Is the oracle of exercise 10 right, and does our own wrapper pass what an answer is put through?"""

import numpy as np
import pytest

from dpbook.book.ch10 import trials
from dpbook.book.ch10.trials import Chain
from dpbook.book.ch10.wires import in_threads


class Local:
    """No wrapper at all."""

    def __init__(self, module, world, broadcast, all_reduce):
        pass

    def finish(self):
        pass


@pytest.mark.parametrize("seed", range(3))
def test_the_numpy_gradients_are_those_of_autograd(seed):
    chain = Chain.draw(np.random.default_rng(seed), 1)
    (found,) = in_threads(lambda wire: trials.train(Local, "naive", chain.trial, wire), 1)
    for expected, got in zip(chain.states(), found["states"], strict=True):
        assert len(expected) == len(got)
        assert all(np.abs(e - g).max() < 1e-12 for e, g in zip(expected.values(), got, strict=True))


def test_the_tensors_are_those_that_torch_would_train():
    chain = Chain.draw(np.random.default_rng(0), 2)
    named = [(n, tuple(p.shape)) for n, p in trials.ChainModule(chain.trial, 1).named_parameters() if p.requires_grad]
    assert [(tensor.name, tensor.shape) for tensor, _ in chain.tensors()] == named


def test_the_big_batch_moves_every_trained_parameter_and_no_frozen_one():
    chain = Chain.draw(np.random.default_rng(0), 3)
    first, last = chain.states()[0], chain.states()[-1]
    moved = [not np.array_equal(first[name], last[name]) for name in first]
    assert moved.count(False) == 2


def test_a_rank_may_leave_out_a_layer_that_is_trained():
    for seed in range(20):
        chain = Chain.draw(np.random.default_rng(seed), 3, absent=True)
        without = [set(range(chain.layers)) - set(order) for order in chain.orders]
        assert sorted(map(len, without)) == [0, 0, 1]
        assert chain.frozen not in set.union(*without)


@pytest.mark.parametrize("crossed", [False, True])
def test_a_drawn_cap_makes_several_buckets(crossed):
    for seed in range(20):
        chain = Chain.draw(np.random.default_rng(seed), 3, layers=9, crossed=crossed)
        assert 2 < chain.plan().calls < len(chain.tensors())
    assert (len(set(chain.orders)) > 1) == crossed


def test_with_micro_batches_a_layer_is_left_out_of_the_last_alone():
    for seed in range(5):
        chain = Chain.draw(np.random.default_rng(seed), 3, micro=3, absent=True)
        assert len(set(chain.orders)) == 1
        assert sorted(len(chain.orders[0]) - len(order) for order in chain.last) == [0, 0, 1]
        rank = min(range(3), key=lambda r: len(chain.last[r]))
        (layer,) = set(chain.orders[rank]) - set(chain.last[rank])
        assert layer != chain.frozen
        assert layer not in chain.tied
