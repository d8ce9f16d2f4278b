"""What the tasks of exercise 06 check: a price, a crossover, a plan."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpbook.collectives import (
    ALGORITHMS,
    Link,
    Round,
    Schedule,
    Topology,
    closed_forms,
    cost,
    crossover,
    from_json,
    to_json,
)
from dpbook.core import plural
from dpbook.grading import Answer, Through, call, expect_close, expect_number

WORLDS = (1, 2, 5, 7, 16)
BUS_RATES, PORT_RATES = (600, 900, 1800), (100, 200, 400, 800)


def _seconds(answer: Answer, expected: float, where: str, *args: Any, through: Through | None = None) -> None:
    """``answer(*args)`` is the ``expected`` number, give or take a millionth of it."""
    got = expect_number(call(answer, *args, through=through, where=where), where)
    expect_close(expected, got, 1e-6 * expected, where)


def _link(rng: np.random.Generator) -> Link:
    return Link(float(rng.uniform(2e-6, 5e-5)), float(rng.uniform(1e9, 5e10)))


# 06.1: price a schedule


def _price(answer: Answer, schedule: Schedule, size: int, rng: np.random.Generator) -> None:
    link, itemsize = _link(rng), int(rng.choice([2, 4, 8]))
    expected = cost(schedule, size * itemsize, link, itemsize).seconds
    buffer = f"{plural(size, 'element')} of {itemsize} bytes"
    where = f"{schedule.name}, {buffer}, α = {link.alpha:.3g} s, β = {link.beta:.3g} s"
    _seconds(answer, expected, where, to_json(schedule), size, itemsize, link.alpha, link.beta, through=_read)


def _read(function: Callable[..., Any], written: str, *args: Any) -> Any:
    """Schedules travel to the answer as text: like all arguments they are copied, so that none can be changed."""
    return function(from_json(written), *args)


def even_chunks(answer: Answer, rng: np.random.Generator) -> None:
    for build in ALGORITHMS.values():
        for world in WORLDS:
            schedule = build(world)
            _price(answer, schedule, schedule.n_chunks * int(rng.integers(1, 5000)), rng)


def any_schedule(answer: Answer, rng: np.random.Generator) -> None:
    for build in ALGORITHMS.values():
        for world in WORLDS[1:]:
            for size in (1, world - 1, 10 * world + 1, 0):
                _price(answer, build(world), size, rng)
    for world in WORLDS[1:]:
        fan = [Round.of(0, range(1, world), 0, False), Round.of(range(1, world), 0, range(1, world), True)]
        _price(answer, Schedule(world, world, fan, name="one to all, all to one"), 10 * world + 3, rng)
        _price(answer, _scrambled(world, rng), 10 * world + 3, rng)


def _scrambled(world: int, rng: np.random.Generator) -> Schedule:
    """Rounds of random messages, one of the rounds empty: they compute nothing, but they have a price."""
    rounds = []
    for messages in rng.permutation([0, 1, world, 2 * world]):
        cells = rng.choice(world * world, int(messages), replace=False)  # no two messages write the same one
        dest, chunk = cells // world, cells % world
        source = (dest + rng.integers(1, world, len(cells))) % world
        rounds.append(Round.of(source, dest, chunk, True))
    return Schedule(world, world, rounds, name="random messages")


# 06.2: from a sweep to the better algorithm


def overtakes(answer: Answer, rng: np.random.Generator, *, worlds: tuple[int, ...]) -> None:
    for world in worlds:
        link = _link(rng)
        nbytes = np.geomspace(1e3, 1e7, int(rng.integers(5, 12))).round()
        expected = crossover(closed_forms.tree(world, link), closed_forms.ring(world, link)) or 0.0
        where = f"world {world}, a link of α = {1e6 * link.alpha:.3g} µs and {link.bandwidth / 1e9:.3g} GB/s"
        _seconds(answer, expected, where, world, nbytes, link.alpha + link.beta * nbytes)


powers_of_two = partial(overtakes, worlds=(4, 8, 16, 64, 1024))
other_worlds = partial(overtakes, worlds=(5, 7, 12, 96, 1, 2, 3))

# 06.3: mend the units


def right_units(answer: Answer, rng: np.random.Generator) -> None:
    plans = [  # first those in which only one kind of link counts
        ("one GPU per node, so that only the ports count", int(rng.choice([2, 5, 7, 16])), 1),
        ("a single node, so that only its inside counts", 1, int(rng.choice([2, 4, 8]))),
        *(("both", nodes, 8) for nodes in (2, 5, 7, 16, 32)),
    ]
    for what, nodes, per_node in plans:
        parameters = int(rng.integers(10**8, 10**12))
        port, bus = int(rng.choice(PORT_RATES)), int(rng.choice(BUS_RATES))
        cluster = Topology(nodes, per_node, Link.gigabytes(bus / 2), Link.gigabits(port))
        expected = closed_forms.hierarchical_ring(nodes, per_node, cluster)(2 * parameters)
        where = f"{what}: {parameters:,} parameters, {nodes} × {per_node} GPUs, ports of {port} Gb/s, NVLink {bus} GB/s"
        _seconds(answer, expected, where, parameters, nodes, per_node, port, bus)
