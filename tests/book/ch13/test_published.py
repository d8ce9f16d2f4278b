"""Is the planner as far from published sweeps as the book says?"""

from dataclasses import replace

import numpy as np
import pytest

from dpbook.book import ch13
from dpbook.book.ch13.published import WIRES
from dpbook.collectives import Link, closed_forms
from dpbook.ranks import published_sweep
from tests.cases import each

NODE, FOUR_NODES = published_sweep(), published_sweep("b200x32")


def errors(cluster, sweep):
    return ch13.predicted_sweep(cluster, sweep) / sweep.seconds - 1


def test_every_second_size_predicts_the_others_within_15_percent():
    node = ch13.fixed(NODE)
    assert node.wires == pytest.approx(WIRES, abs=0.005)
    predicted = np.abs(errors(node, NODE)[1::2])
    assert 0.05 < predicted.max() < 0.15  # it is not fitted to them
    assert (predicted < 0.1).sum() == 9


def test_two_sizes_predict_most_of_a_sweep_on_four_nodes():
    off = np.abs(errors(ch13.fixed_on_two_points(FOUR_NODES), FOUR_NODES))
    fixed = np.isin(FOUR_NODES.nbytes, [2**20, 2**34])
    assert off[fixed].max() < 1e-6
    missed = FOUR_NODES.nbytes[off > 0.1].tolist()
    assert missed == [2**15, 2**16, 2**17, 2**25]  # 14 of 18 are within a tenth


@each("small", [2**power for power in range(18, 24)])
@each("large", [2**30, 2**32, 2**34])
def test_other_pairs_of_sizes_predict_more_than_half_too(small, large):
    off = np.abs(errors(ch13.fixed_on_two_points(FOUR_NODES, small, large), FOUR_NODES))
    others = ~np.isin(FOUR_NODES.nbytes, [small, large])
    assert 10 <= (off[others] <= 0.1).sum() <= 14
    assert off[FOUR_NODES.nbytes >= 2**18].max() < 0.21


def test_the_three_smallest_sizes_take_longer_the_fewer_bytes_they_have():
    """So no price that grows with the bytes can meet them."""
    assert (np.diff(FOUR_NODES.seconds[:4]) < 0).all()
    assert FOUR_NODES.seconds[0] > 15 * FOUR_NODES.seconds[3]


def test_constants_of_the_data_sheets_are_too_fast_below_32_mebibytes():
    pod = ch13.fixed_on_two_points(FOUR_NODES)
    sheet = replace(pod, network=Link.gigabits(400, latency=5e-6), wires=1.0)
    ratio = 1 + errors(sheet, FOUR_NODES)
    assert ratio[FOUR_NODES.nbytes < 2**25].max() < 0.5
    assert ratio[FOUR_NODES.nbytes > 2**28].min() > 0.85


@each("nbytes", [2**23, 2**24])
def test_trees_in_lock_step_would_cost_30_percent_too_much(nbytes):
    """Every block pays the latency there, whatever the block; the network's alone is counted here."""
    pod = ch13.fixed_on_two_points(FOUR_NODES).topology
    part, link = nbytes / 8, pod.between
    lock_step = min(closed_forms.double_binary_tree(4, link, part / parts)(part) for parts in range(1, 1025))
    (size,) = np.flatnonzero(FOUR_NODES.nbytes == nbytes)
    assert FOUR_NODES.algorithms[size] == "Tree"
    assert lock_step > 1.3 * FOUR_NODES.seconds[size]
