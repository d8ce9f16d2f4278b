"""Is a schedule priced where its ranks really are?"""

import pytest

from dpbook.book.ch06 import price_scattered
from dpbook.collectives import Round, Schedule, Topology, cost, ring
from tests.cases import each

MESSAGE = 5e-6 + 64e6 / 50e9
INSIDE = 3e-6 + 64e6 / 450e9


def one_round(source, dest):
    return Schedule(4, 1, [Round.of(source, dest, 0, True)])


@each(
    ("host", "source", "dest", "seconds"),
    [
        ([0, 1, 0, 1], [0, 1], [2, 3], INSIDE),
        ([0, 0, 1, 1], [0, 1], [2, 3], 5e-6 + 2 * 64e6 / 50e9),  # both leave node 0 by its one port
        ([1, 0, 0, 1], [0, 1], [2, 3], MESSAGE),
        ([1, 0, 1, 0], [0], [1], MESSAGE),
    ],
)
def test_a_message_costs_what_the_nodes_of_its_ends_say(host, source, dest, seconds):
    assert price_scattered(one_round(source, dest), host, ports=1) == pytest.approx(seconds)


def test_ranks_that_are_in_order_are_priced_as_they_are():
    from dpbook.book.ch06 import INSIDE, PORT

    whole = cost(ring(4), 64_000_000, Topology(2, 2, INSIDE, PORT, ports=1)).seconds
    assert price_scattered(ring(4), [0, 0, 1, 1], ports=1) == whole
