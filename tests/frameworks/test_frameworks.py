"""Is no right script of Accelerate, Trainer, Lightning or Fabric accused, and is each fault named by its own check?

The frameworks are those of the extra ``frameworks``, on 2, 3 and 4 ranks. The plain scripts of the audit's own tests
run on 2 and 4 too.
"""

import functools
import importlib.util

import pytest

from dpbook.ranks import start
from dpbook.runs.audit.audited_run import judge_run
from dpbook.runs.audit.journals import read_journals
from tests.frameworks import scripts
from tests.runs.audit import scripts as plain
from tests.runs.audit.on_ranks import run_jobs

WORLDS = (2, 3, 4)
FRAMEWORKS = ("accelerate", "transformers", "lightning")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.proof,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in FRAMEWORKS), reason="needs the extra frameworks"
    ),
]


@functools.cache
def _lines(folder, world, name):
    return judge_run(read_journals(folder / name.replace(" ", "-"), world), replay=1)


def run_all(folder, world, texts):
    """Run all scripts, recorded, in one start of the ranks."""
    jobs = []
    for name, text in texts.items():
        home = folder / name.replace(" ", "-")
        home.mkdir()
        (home / "train.py").write_text(text)
        jobs.append((str(home / "train.py"), [], str(home), {"replay": 1}))
    start(run_jobs, [(rank, jobs) for rank in range(world)], timeout=1200)
    return {name: _lines(folder, world, name) for name in texts}


def accused(lines):
    return {line.name: line.result.message for line in lines if line.result.status in ("FAIL", "WARN")}


@pytest.mark.parametrize("world", WORLDS)
def test_no_right_script_of_a_framework_is_accused(tmp_path, world):
    judged = run_all(tmp_path, world, scripts.RIGHT)
    assert {name: accused(lines) for name, lines in judged.items()} == {name: {} for name in judged}
    replays = {name: {line.result.status for line in lines if line.name == "replay"} for name, lines in judged.items()}
    assert replays == {name: {"PASS"} for name in judged}


@pytest.mark.parametrize("world", WORLDS)
def test_a_fault_is_named_by_its_own_check(tmp_path, world):
    judged = run_all(tmp_path, world, {name: text for name, (text, _) in scripts.WRONG.items()})
    causes = {
        name: {line.name for line in lines if line.result.status in ("FAIL", "WARN") and line.because is None}
        for name, lines in judged.items()
    }
    expected = {name: {check} for name, (_, check) in scripts.WRONG.items()}
    if world == 2:  # the factor may be another one; of two micro-batches it is taken for that of their number
        known = {name: {line.name: line.result for line in lines} for name, lines in judged.items()}
        unsure = [name for name in judged if "times the ranks" in name and "not" not in name]
        for name in (name for name in unsure if causes[name] != {"replay"}):
            micro = "mean" in causes[name]
            assert micro or "--nproc 3" in known[name]["replay"].message
            expected[name] = {"mean"} if micro else set()
    assert causes == expected


@pytest.mark.parametrize("world", [2, 4])
def test_no_right_plain_script_is_accused_in_another_world(tmp_path, world):
    judged = run_all(tmp_path, world, {name: plain.HEAD + text for name, text in plain.RIGHT.items()})
    assert {name: accused(lines) for name, lines in judged.items() if accused(lines)} == {}


@pytest.mark.parametrize("world", [2, 4])
def test_a_plain_fault_is_named_in_another_world(tmp_path, world):
    """The script that leaves out the third rank is right on two ranks."""
    wrong = {name: given for name, given in plain.WRONG.items() if world > 2 or name != "a rank left out"}
    judged = run_all(tmp_path, world, {name: plain.HEAD + text for name, (text, _) in wrong.items()})
    causes = {
        name: {line.name for line in lines if line.failed and line.because is None} for name, lines in judged.items()
    }
    assert causes == {name: {check} for name, (_, check) in wrong.items()}
