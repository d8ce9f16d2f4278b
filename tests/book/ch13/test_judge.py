"""Does exercise 13.3 accept every right way to its numbers, whatever numbers a course draws?"""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from dpbook.book.ch13 import judge
from dpbook.classroom import LocalAnswer, Wrong
from tests.cases import each


def without_the_last_rank(reached, rate, batch):
    """Return the four walls if (N − 1)/N counts as 1: D·W/F, by what each case sends and hides."""
    ratio = batch * 8192 * rate * 1e9 / (reached * 1e12)
    return [ratio / 4, ratio / 20, ratio, 4 * ratio]


def judged(monkeypatch, numbers, answer):
    monkeypatch.setattr(judge, "WALLS", replace(judge.WALLS, published=numbers))
    judge.predicts(LocalAnswer(answer), np.random.default_rng(0))


SMALLEST_FIRST = sorted(judge.WALLS.others(), key=lambda numbers: without_the_last_rank(*numbers))


@each("numbers", SMALLEST_FIRST[::6])
def test_a_ring_may_take_its_whole_bytes(numbers, monkeypatch):
    walls = without_the_last_rank(*numbers)
    judged(monkeypatch, numbers, walls)
    judged(monkeypatch, numbers, [ceil(wall) for wall in walls])
    for place in range(4):
        for factor in (0.5, 2 / 3, 1.5, 2):
            wrong = [wall * (factor if k == place else 1) for k, wall in enumerate(walls)]
            with pytest.raises(Wrong):
                judged(monkeypatch, numbers, wrong)
