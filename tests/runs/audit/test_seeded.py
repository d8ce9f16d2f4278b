"""Does the audit accuse no right script that is drawn by seed, and name the drawn fault of the other?"""

from typing import NamedTuple

import pytest

from dpbook.ranks import start
from dpbook.runs.audit import Finding
from dpbook.runs.audit.audited_run import judge_run
from dpbook.runs.audit.journals import read_journals
from tests.runs.audit.on_ranks import run_jobs
from tests.runs.audit.seeded import Pair, drawn

pytestmark = pytest.mark.processes
WORLDS = (2, 3, 4)
PROVEN = range(100)
PAIRS = 4
"""Pairs of each world that every change must pass; the proof has the compiled ones, as a compiler takes seconds."""


class Judged(NamedTuple):
    pair: Pair
    right: list[Finding]
    wrong: list[Finding]


def judge_pairs(home, pairs, world):
    """Both scripts of each pair run on ``world`` ranks, all in one start, by seed."""
    jobs = {}
    for seed, pair in pairs.items():
        for kind in ("right", "wrong"):
            folder = home / f"{seed}-{kind}"
            folder.mkdir()
            (folder / "train.py").write_text(getattr(pair, kind))
            jobs[seed, kind] = (str(folder / "train.py"), [], str(folder), {"replay": 1})
    start(run_jobs, [(rank, list(jobs.values())) for rank in range(world)], timeout=900)
    lines = {key: judge_run(read_journals(home / "-".join(map(str, key)), world), replay=1) for key in jobs}
    return {seed: Judged(pair, lines[seed, "right"], lines[seed, "wrong"]) for seed, pair in pairs.items()}


def pairs_of(world, seeds):
    return {seed: pair for seed in seeds if (pair := drawn(seed)).parts.world == world}


@pytest.mark.parametrize("world", [pytest.param(w, marks=() if w == 3 else pytest.mark.proof) for w in WORLDS])
def test_a_dozen_pairs(tmp_path, world):
    plain = {s: pair for s, pair in pairs_of(world, PROVEN).items() if "compiled" not in pair.parts.wrapper}
    assert mistakes(judge_pairs(tmp_path, dict(list(plain.items())[:PAIRS]), world)) == []


@pytest.mark.proof
@pytest.mark.parametrize("world", WORLDS)
def test_a_hundred_pairs(tmp_path, world):
    assert mistakes(judge_pairs(tmp_path, pairs_of(world, PROVEN), world)) == []


def mistakes(judged):
    """Right scripts that are accused, and faults that are not named first with their rank and line, by seed."""
    accused = [(seed, line) for seed, each in judged.items() for line in each.right if line.failed]
    missed = [(seed, each.pair.fault, each.wrong[0]) for seed, each in judged.items() if not named(each)]
    blind = [
        (seed, line.result.message)
        for seed, each in judged.items()
        for line in each.right
        if line.name in ("mean", "replay", "examples", "watching") and line.result.status == "----"
    ]
    return accused + missed + blind


def named(judged):
    pair, causes = judged.pair, [line for line in judged.wrong if line.failed and line.because is None]
    if {line.name for line in causes} != {pair.check} or not judged.wrong[0].failed:
        return False
    result = causes[0].result
    text = pair.text and pair.text.format(model=pair.parts.names[0])
    return pair.rank in (None, result.rank) and (text is None or text in result.place[2])
