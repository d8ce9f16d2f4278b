"""Checks of exercise 06: the price of a schedule, a crossover, an order of ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpbook import collectives
from dpbook.book.ch06 import RandomSweep, draw, price_scattered
from dpbook.classroom import (
    Answer,
    ParResult,
    call,
    expect_at_most,
    expect_close,
    expect_items,
    expect_number,
    expect_schedule,
)
from dpbook.collectives import ALGORITHMS, Link, Round, Schedule, closed_forms, cost, crossover, relabel
from dpbook.core import plural

WORLDS = (1, 2, 5, 7, 16)


# 06.1: price a schedule


def _price(answer: Answer, schedule: Schedule, size: int, rng: np.random.Generator) -> None:
    link = Link(float(rng.uniform(2e-6, 5e-5)), float(rng.uniform(1e9, 5e10)))
    itemsize = int(rng.choice([2, 4, 8]))
    expected = cost(schedule, size * itemsize, link, itemsize).seconds
    buffer = f"{plural(size, 'element')} of {itemsize} bytes"
    where = f"{schedule.name}, {buffer}, α = {link.alpha:.3g} s, β = {link.beta:.3g} s"
    messages = collectives.count(schedule, size, itemsize).messages
    nbytes = np.diff(schedule.bounds(size, itemsize))
    full = sum(bool(nbytes[round_.chunk].any()) for round_ in schedule.walk())
    mistakes = {
        "α is paid for every message. The messages of a round travel at the same time, so it is paid once a round.": (
            expected + link.alpha * (messages - full)
        ),
        "A round in which nobody sends a byte costs nothing, not even α.": (
            expected + link.alpha * (len(schedule.rounds) - full)
        ),
    }
    given = collectives.to_json(schedule), size, itemsize, link.alpha, link.beta
    got = expect_number(call(answer, *given, through=_read, where=where), where)
    expect_close(expected, got, 1e-6 * expected, where, mistakes=mistakes)


def _read(function: Callable[..., Any], text: str, *args: Any) -> Any:
    """Call a function with a schedule from JSON: like all arguments, schedules are copied, so none can be changed."""
    return function(collectives.from_json(text), *args)


def even_chunks(answer: Answer, rng: np.random.Generator) -> None:
    for build in ALGORITHMS.values():
        for world in filter(build.worlds, WORLDS):
            schedule = build(world)
            _price(answer, schedule, schedule.n_chunks * int(rng.integers(1, 5000)), rng)


def any_schedule(answer: Answer, rng: np.random.Generator) -> None:
    for build in ALGORITHMS.values():
        for world in filter(build.worlds, WORLDS[1:]):
            for size in (1, world - 1, 10 * world + 1, 0):
                _price(answer, build(world), size, rng)
    for world in WORLDS[1:]:
        fan = [Round.of(0, range(1, world), 0, False), Round.of(range(1, world), 0, range(1, world), True)]
        _price(answer, Schedule(world, world, fan, name="one to all, all to one"), 10 * world + 3, rng)
        bounds = collectives.FixedBounds((0, *range(0, 10 * (world - 1), 10), 10 * world + 3))
        _price(answer, Schedule(world, world, fan, bounds, name="chunks of its own"), 10 * world + 3, rng)
        _price(answer, _scrambled(world, rng), 10 * world + 3, rng)


def _scrambled(world: int, rng: np.random.Generator) -> Schedule:
    """Return rounds of random messages, one of them empty: they compute nothing, but have a price."""
    rounds = []
    for messages in rng.permutation([0, 1, world, 2 * world]):
        cells = rng.choice(world * world, int(messages), replace=False)  # no two messages write the same one
        dest, chunk = cells // world, cells % world
        source = (dest + rng.integers(1, world, len(cells))) % world
        rounds.append(Round.of(source, dest, chunk, True))
    return Schedule(world, world, rounds, name="random messages")


# 06.2: from a sweep to the better algorithm


SIZE_BOUND = 0.06
"""Relative tolerance of the crossover: over many draws, a fit of the right half is off by at most 3 %."""


def _overtakes(answer: Answer, rng: np.random.Generator, world: int) -> tuple[Any, RandomSweep, str]:
    """Return the answer's pair for a random sweep, the sweep, and its description."""
    drawn = draw(rng)
    link = f"a link of α = {1e6 * drawn.link.alpha:.3g} µs and {drawn.link.bandwidth / 1e9:.3g} GB/s"
    where = f"world {world}, {link}, switched at {drawn.first:,} bytes"
    got = call(answer, world, drawn.nbytes, drawn.seconds, where=where)
    return expect_items(got, 2, "a pair: (first, size)"), drawn, where


def line_holds(answer: Answer, rng: np.random.Generator) -> None:
    for world in (1, 4, 5, 64):
        (first, _), drawn, where = _overtakes(answer, rng, world)
        expect_close(drawn.first, expect_number(first, where), 0, where)


def ring_overtakes(answer: Answer, rng: np.random.Generator) -> None:
    for world in (*3 * (4, 8, 64, 1024, 5, 7, 12, 96), 1, 2, 3):  # a line through two points is sometimes right
        (_, size), drawn, where = _overtakes(answer, rng, world)
        expected = crossover(closed_forms.tree(world, drawn.link), closed_forms.ring(world, drawn.link)) or 0.0
        twice = "This is twice the size. Is your α that of one message, and does your tree go up and down again?"
        mistakes = {twice: 2 * expected} if expected else {}
        expect_close(expected, expect_number(size, where), SIZE_BOUND * expected, where, mistakes=mistakes)


# 06.3: ranks that are scattered


def scattered(answer: Answer, rng: np.random.Generator, *, shared: bool) -> ParResult:
    """Check that schedules for shuffled ranks cost no more than par, in microseconds."""
    for nodes, per_node in ((1, 3), (5, 1), (2, 2), (3, 4), (4, 4)):
        host = rng.permutation(np.repeat(np.arange(nodes), per_node)).tolist()
        where, ports = f"host {host}", 1 if shared else per_node
        schedule = expect_schedule(call(answer, host, where=where), len(host), where=where)
        in_order = np.argsort(host, kind="stable").tolist()
        par = collectives.ring(len(host)) if shared else collectives.hierarchical_ring(nodes, per_node)
        allowed = (1 if shared else 1.05) * price_scattered(relabel(par, in_order), host, ports)
        spent = price_scattered(schedule, host, ports)
        reached = expect_at_most(round(1e6 * allowed), round(1e6 * spent), "µs", where)
    return reached.with_schedule(schedule)


one_port, port_each = partial(scattered, shared=True), partial(scattered, shared=False)
