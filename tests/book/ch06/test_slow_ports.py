"""Do schedules over slow ports compute what they should, and keep their ports as long as a link would?"""

import numpy as np
import pytest

from dpbook.book.ch06 import over_slow_ports, time
from dpbook.collectives import Link, cost, halving_doubling, ring, run, simulate, tree
from tests.cases import each, refuses

LINK = Link(1e-3, 1e6)


@each("build", [ring, tree])
@each("size", [2, 12, 13])
def test_the_result_has_the_bits_of_the_simulation(build, size, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    buffers = np.random.default_rng(0).standard_normal((4, size)).astype(np.float32)
    assert np.array_equal(run(over_slow_ports(build(4), LINK), buffers), simulate(build(4), buffers).buffers)


def test_in_a_ring_every_rank_keeps_its_port_for_the_price_of_the_call(monkeypatch):
    kept = []
    monkeypatch.setattr(time, "sleep", kept.append)
    run(over_slow_ports(ring(3), LINK), np.zeros((3, 3000), np.float32))
    assert sum(kept) == pytest.approx(3 * cost(ring(3), 12_000, LINK).seconds)


def test_a_rank_without_a_message_does_not_wait(monkeypatch):
    kept = []
    monkeypatch.setattr(time, "sleep", kept.append)
    run(over_slow_ports(tree(3), LINK), np.zeros((3, 1000), np.float32))
    messages = 4  # two up and two down, each with two ends
    assert kept == [pytest.approx(LINK.alpha + 4000 * LINK.beta)] * 2 * messages


test_several_messages_of_a_rank_in_one_round_are_refused = refuses(
    (lambda: over_slow_ports(halving_doubling(4), LINK), "schedule must be"),
)
