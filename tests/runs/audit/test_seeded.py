"""Of scripts drawn by seed, does the audit accuse no right one, and name the drawn fault of the other?"""

from typing import NamedTuple

import pytest

from dpbook.ranks import start
from dpbook.runs.audit import Line
from dpbook.runs.audit.audited_run import judged
from dpbook.runs.audit.journals import seen
from tests.runs.audit.on_ranks import run_jobs
from tests.runs.audit.seeded import Pair, drawn

pytestmark = pytest.mark.processes
WORLDS = (2, 3, 4)
PROVEN = range(100)
EACH = 4
"""Pairs of each world that every change must pass; those that are compiled load the compiler, which takes seconds."""


class Judged(NamedTuple):
    pair: Pair
    right: list[Line]
    wrong: list[Line]


def judged_pairs(home, pairs, world):
    """Both scripts of each pair run on ``world`` ranks, all in one start, by seed."""
    jobs = {}
    for seed, pair in pairs.items():
        for kind in ("right", "wrong"):
            folder = home / f"{seed}-{kind}"
            folder.mkdir()
            (folder / "train.py").write_text(getattr(pair, kind))
            jobs[seed, kind] = (str(folder / "train.py"), [], str(folder), {"replay": 1})
    start(run_jobs, [(rank, list(jobs.values())) for rank in range(world)], timeout=900)
    lines = {key: judged(seen(home / "-".join(map(str, key)), world), replay=1) for key in jobs}
    return {seed: Judged(pair, lines[seed, "right"], lines[seed, "wrong"]) for seed, pair in pairs.items()}


def pairs_of(world, seeds):
    return {seed: pair for seed in seeds if (pair := drawn(seed)).parts.world == world}


@pytest.mark.parametrize("world", WORLDS)
def test_a_dozen_pairs(tmp_path, world):
    plain = {s: pair for s, pair in pairs_of(world, PROVEN).items() if "compiled" not in pair.parts.wrapper}
    assert mistakes(judged_pairs(tmp_path, dict(list(plain.items())[:EACH]), world)) == []


@pytest.mark.proof
@pytest.mark.parametrize("world", WORLDS)
def test_a_hundred_pairs(tmp_path, world):
    assert mistakes(judged_pairs(tmp_path, pairs_of(world, PROVEN), world)) == []


def mistakes(found):
    """Right scripts that are accused, and faults that are not named first with their rank and line, by seed."""
    accused = [(seed, line) for seed, each in found.items() for line in each.right if line.failed]
    missed = [(seed, each.pair.fault, each.wrong[0]) for seed, each in found.items() if not named(each)]
    blind = [
        (seed, line.found.told)
        for seed, each in found.items()
        for line in each.right
        if line.name in ("mean", "replay", "examples", "watching") and line.found.status == "----"
    ]
    return accused + missed + blind


def named(each):
    pair, causes = each.pair, [line for line in each.wrong if line.failed and line.because is None]
    if {line.name for line in causes} != {pair.check} or not each.wrong[0].failed:
        return False
    found = causes[0].found
    text = pair.text and pair.text.format(model=pair.parts.names[0])
    return pair.rank in (None, found.rank) and (text is None or text in found.place[2])
