"""Made-up tasks: a function, a number, a schedule. Their chapter, 90, does not exist."""

import sys

import numpy as np
import pytest

from dpbook.classroom import Check, Task, call, expect_at_most, expect_close, expect_equal, expect_schedule, value
from dpbook.collectives import ring


def sums(answer, rng):
    for world in (1, 2, 5):
        buffers = rng.integers(0, 100, (world, 7)).astype(float)
        got = call(answer, buffers)
        expect_equal(np.tile(buffers.sum(axis=0), (world, 1)), got, f"world {world}", axes=("rank", "element"))


def uneven(answer, rng):
    for size in (0, 1, 3):
        buffers = rng.normal(size=(4, size))
        got = call(answer, buffers)
        expect_close(np.tile(buffers.sum(axis=0), (4, 1)), got, 1e-12, f"size {size}")


def keeps(answer, rng):
    call(answer, rng.normal(size=(3, 5)), unchanged=True)


def number(answer, rng):
    expect_close(1.875, value(answer), 1e-9)


def exact(answer, rng):
    world = int(rng.integers(2, 9))
    schedule = expect_schedule(call(answer, world), world)
    return expect_at_most(2 * (world - 1), len(schedule.rounds), "round(s)")


TASKS = (
    Task(
        "90.1",
        "All-reduce",
        "all_reduce",
        [
            Check("the sum on every rank", 2, "A rank with another sum drifts.", sums),
            Check("small buffers", 1, "Buffers do not divide by the world.", uneven),
            Check("inputs stay", 1, "The next step needs them.", keeps),
        ],
        hints=("Which axis is the rank?", "np.tile repeats a row.", "<b>one & all</b>"),
    ),
    Task("90.2", "Leftover", "prediction", [Check("the factor", 1, "It is an update.", number)]),
    Task("90.10", "Ring", "build", [Check("verified", 3, "Exact for every input.", exact)]),
)


@pytest.fixture(autouse=True)
def made_up_tasks(monkeypatch, tmp_path):
    """Register the tasks for one test, away from any workbook, with all hints closed."""
    registered = sys.modules["dpbook.classroom.tasks.load_tasks"]._registered
    for task in TASKS:
        monkeypatch.setitem(registered, task.id, task)
    monkeypatch.setattr(sys.modules["dpbook.classroom.tasks.load_tasks"], "_opened", {})
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def all_reduce():
    """The right answer to 90.1."""
    return lambda buffers: np.tile(buffers.sum(axis=0), (len(buffers), 1))


@pytest.fixture
def build():
    """The right answer to 90.10."""
    return ring
