"""Does a report speak of the mistake that was made, where its result is known, and of none where it is not?"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from dpbook.classroom import LocalAnswer, judge, known_mistake, task

MUTANTS = Path(__file__).parents[1] / "mutants"
EXPLAINED = {
    ("01.1", "sum in place of average"): "sum of the two means",
    ("01.1", "sign"): "The sign is wrong",
    ("01.1", "half of the derivative"): "A factor of 2",
    ("01.1", "unequal shards do not matter"): "the mean over all six",
    ("01.2", "no division"): "divide it by the number of ranks",
    ("01.2", "no exchange"): "average the gradients before the step",
    ("01.3", "against the mean"): "distance from the mean",
    ("01.3", "against rank 0 only"): "distance from rank 0",
    ("01.3", "standard deviation"): "a standard deviation",
    ("02.3", "plain mean"): "mean of the ranks' means",
    ("02.4", "every rank for itself"): "its own examples",
    ("02.4", "statistics taken as constants"): "constants",
    ("02.4", "forward only"): "over a rank's own examples",
    ("03.1", "not padded"): "pad the order",
    ("03.1", "dropped in place of padded"): "pad the order",
    ("03.4", "off by one"): "steps count from 1",
    ("03.4", "roles swapped"): "swapped",
    ("04.2", "mean of micro-batch means"): "counts the same",
    ("04.2", "N left out"): "divides by the number of ranks",
    ("04.2", "leftover as if it were full"): "as if it were full",
    ("05.1", "half-way is not copied"): "copy the arrays",
    ("05.2", "one half only"): "one half",
    ("05.2", "N in place of N - 1"): "a round less",
    ("06.1", "α for every message"): "travel at the same time",
    ("06.1", "empty rounds cost a latency"): "costs nothing",
    ("07.1", "totals"): "less computation",
    ("07.1", "waiting counted"): "Waiting is counted",
    ("08.1", "the last bucket never sent"): "The last bucket is missing",
    ("08.2", "not one more"): "still the same",
    ("14.1", "stage 2 reduces once per step"): "Stage 2 reduces",
    ("14.1", "an all-reduce in every micro-batch"): "Stages 0 and 1 reduce once",
    ("14.4", "its own norm"): "the other ranks' pieces",
    ("14.4", "copies counted again"): "counted on each of them",
    ("14.4", "other arrays in the list"): "scale it in place",
}


def wrong_answers(chapter):
    spec = importlib.util.spec_from_file_location(f"ch{chapter}", MUTANTS / f"ch{chapter}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {(each.task, each.name): each.answer for each in module.MUTANTS}


@pytest.mark.parametrize("chapter", sorted({name[:2] for name, _ in EXPLAINED}))
def test_the_report_says_what_is_wrong(chapter):
    answers = wrong_answers(chapter)
    for (name, mistake), words in EXPLAINED.items():
        if name.startswith(chapter):
            whys = [case.why for case in judge(task(name), LocalAnswer(answers[name, mistake])).cases]
            assert any(words in why for why in whys), f"{name}, {mistake}: {whys}"


def test_another_mistake_has_the_sentence_of_the_check():
    """Also where two known mistakes have the same result."""
    answers = wrong_answers("01")
    for mistake in ("last rank ignores it", "own order of summation"):
        report = judge(task("01.2"), LocalAnswer(answers["01.2", mistake]))
        sentences = {check.why for check in task("01.2").checks}
        assert {case.why for case in report.cases if case.why} <= sentences
    assert known_mistake(1, {"one": 1, "the other": 1}) == ""


def test_a_mistake_is_known_by_its_result():
    mistakes = {"twice": 2.0, "an array": np.array([1.0, 2.0])}
    assert known_mistake(2, mistakes) == "twice"
    assert known_mistake(2 + 1e-9, mistakes, 1e-6) == "twice"
    assert known_mistake(np.array([1.0, 2.0]), mistakes) == "an array"
    assert known_mistake("2", mistakes) == known_mistake(None, mistakes) == known_mistake(3.0, mistakes) == ""
