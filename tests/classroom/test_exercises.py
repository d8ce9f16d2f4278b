"""The published exercises: notebooks fit their tasks, and the checks of every task tell right from wrong."""

import importlib.util
import inspect
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from dpbook.classroom import LocalAnswer, judge, list_tasks, task
from dpbook.classroom.tasks.notebook_cells import read
from dpbook.collectives import Round, Schedule, tree
from dpbook.core import checkout
from dpbook.overlap import plan
from tests.cases import each
from tests.classroom.mutants.edits import answers, edited
from tests.classroom.trials import SEEDS, caught_by, trial
from tools.exercise_notebooks import faults, stale

EXERCISES = checkout.root() / "exercises"
SOLUTIONS = sorted((EXERCISES / "solutions").glob("*.ipynb"))
WITH_PROCESSES = ("09", "10", "11", "14")


def wrong_answers(chapter):
    path = Path(__file__).parent / "mutants" / f"ch{chapter:02}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each("path", SOLUTIONS)
def test_a_solution_fits_its_tasks(path):
    assert faults(path) == []


def test_the_learners_notebooks_are_those_generated_from_the_solutions():
    assert stale() == []


def test_every_chapter_with_tasks_has_an_exercise():
    made_up = {0, 90}  # chapter 00 has its task in the chapter; 90 is that of these tests
    assert {asked.chapter for asked in list_tasks()} - made_up == {int(path.name[:2]) for path in SOLUTIONS}


def of_one_chapter(path):
    """Real processes judge some tasks of some chapters."""
    return pytest.param(path, id=path.stem, marks=pytest.mark.processes if path.stem[:2] in WITH_PROCESSES else ())


@pytest.mark.parametrize(
    "seeds", [SEEDS[:1], pytest.param(range(1, 20), marks=pytest.mark.proof)], ids=["once", "often"]
)
@pytest.mark.parametrize("path", [of_one_chapter(path) for path in SOLUTIONS])
def test_the_reference_passes_and_stub_and_mutants_fail(path, seeds):
    references, stubs = answers(read(path)), answers(read(EXERCISES / path.name))
    wrong = wrong_answers(int(path.name[:2])).MUTANTS
    for asked in list_tasks(int(path.name[:2])):
        number = sum(mutant.task == asked.id for mutant in wrong)
        assert 4 <= number <= 16, f"{asked.id} has {number} mutants"
        assert trial(asked.id, reference=references[asked.id], stub=stubs[asked.id], mutants=wrong, seeds=seeds) == []


@each("path", SOLUTIONS)
def test_a_worthless_answer_earns_nothing(path):
    for task_id, answer in getattr(wrong_answers(int(path.name[:2])), "WORTHLESS", ()):
        report = judge(task(task_id), LocalAnswer(answer))
        assert report.points == 0, f"{task_id}\n{report}"


def all_epochs_before(n, seed, epoch):
    rng = np.random.default_rng(seed)
    for _ in range(epoch):
        rng.permutation(n)
    return rng.permutation(n)


def counting_zeros_and_all(weights, gradient, scale, rate, all_reduce):
    """The number of elements that are finite, on all ranks, without a flag."""
    if all_reduce(gradient.size - np.count_nonzero(np.abs(gradient) < np.inf)) > 0:
        return scale * 0.5
    for place, element in enumerate(gradient.tolist()):
        weights[place] -= rate * element / scale
    return scale


def one_value_for_a_sum(weights, gradient, scale, rate, all_reduce):
    """0 times an inf or a NaN is a NaN, and so is a sum with it."""
    with np.errstate(invalid="ignore"):
        good = all_reduce(float(np.sum(0 * gradient))) == 0
    weights -= rate / scale * gradient if good else 0
    return scale if good else scale / 2


def drawn_again(micro_batches, saved, gradient, s):
    """All draws again from the seed, without the gradients that were made before."""
    rng, zeros = np.random.default_rng(s["seed"]), [0.0] * s["size"]
    state = dict(saved or {"weights": zeros, "velocity": zeros, "total": zeros, "done": 0})
    weights, velocity, total = (np.array(state[name]) for name in ("weights", "velocity", "total"))
    done, end = 0, state["done"] + micro_batches
    while done < end:
        order = rng.permutation(s["examples"])
        for first in range(0, s["examples"], s["batch"]):
            mask, done = rng.random(s["size"]) < 0.9, done + 1
            if not state["done"] < done <= end:
                continue
            total = total + gradient(weights, order[first : first + s["batch"]], mask) / s["accumulation"]
            if done % s["accumulation"] == 0:
                velocity = s["momentum"] * velocity + total
                weights, total = weights - s["rate"] * velocity, np.zeros(s["size"])
    names = ("weights", "velocity", "total")
    return weights, dict(zip(names, (weights.tolist(), velocity.tolist(), total.tolist()), strict=True)) | {"done": end}


def by_one_slow_kernel(program):
    """Each kernel in turn takes for ever: what runs behind it is late, and must not be read."""
    first = None
    for slow, line in enumerate(program):
        if line[0] != "kernel":
            continue
        late, events, host_late = {line[1]}, {}, False
        for number in range(slow):
            if program[number][0] == "record":
                events[program[number][2]] = False
        for number in range(slow + 1, len(program)):
            kind, *rest = program[number]
            if kind == "record":
                events[rest[1]] = rest[0] in late or host_late
            elif kind == "wait" and events.get(rest[1]):
                late.add(rest[0])
            elif kind == "synchronize":
                host_late = host_late or rest[0] in late
            reads = rest[2] if kind == "kernel" else rest if kind == "read" else []
            if line[2] in reads and not host_late and not (kind == "kernel" and rest[0] in late):
                first = min(first or (number, reads.index(line[2]), line[2]), (number, reads.index(line[2]), line[2]))
                break
    return first and (first[0], first[2])


def row_by_row(files, world):
    """Every row goes to its new rank by itself."""
    new = [{"step": files[-1]["step"], "tensors": {}} for _ in range(world)]
    for name, arrays in files[0]["tensors"].items():
        for kind, array in arrays.items():
            rows = [row for file in files for row in file["tensors"][name][kind]]
            chunk = (len(rows) + world - 1) // world
            for rank, file in enumerate(new):
                mine = rows[rank * chunk : (rank + 1) * chunk]
                made = np.array(mine, array.dtype).reshape(len(mine), *array.shape[1:])
                file["tensors"].setdefault(name, {})[kind] = made
    return new


def in_chunks_of_torch(files, world):
    """The pieces of torch.chunk, and empty ones for the ranks that it leaves out."""
    tensors = [{} for _ in range(world)]
    for name in reversed(files[0]["tensors"]):
        for kind in ("exp_avg_sq", "exp_avg", "weight"):
            whole = np.concatenate([f["tensors"][name][kind] for f in files])
            pieces = [piece.numpy() for piece in torch.from_numpy(whole).chunk(world)]
            for rank in range(world):
                tensors[rank].setdefault(name, {})[kind] = pieces[rank] if rank < len(pieces) else whole[:0]
    return tuple({"tensors": tensors[rank], "step": max(f["step"] for f in files)} for rank in range(world))


RIGHT = {
    "finite elements counted": ("11.4", counting_zeros_and_all),
    "a sum that is a NaN": ("11.4", one_value_for_a_sum),
    "all draws again": ("11.5", drawn_again),
    "one slow kernel at a time": ("12.3", by_one_slow_kernel),
    "row by row": ("14.5", row_by_row),
    "torch.chunk": ("14.5", in_chunks_of_torch),
    "all epochs before": ("03.2", all_epochs_before),
    "fractions": ("04.1", tuple(Fraction(*pair) for pair in ((6, 5), (6, 1), (2, 1), (1, 1)))),
}
"""Right answers of a form that few choose."""


@each("name", RIGHT)
def test_a_right_answer_of_another_form_passes(name):
    report = judge(task(RIGHT[name][0]), LocalAnswer(RIGHT[name][1]))
    assert report.passed, report


def test_an_answer_that_changes_nothing_passes_inputs_unchanged_whatever_it_returns():
    wrong = wrong_answers(5).MUTANTS
    (as_given,) = [mutant.answer for mutant in wrong if mutant.name == "as given"]
    report = judge(task("05.1"), LocalAnswer(as_given))
    assert [case.name for case in report.cases if case.passed] == ["inputs unchanged"]


def test_the_rank_that_find_fault_names_is_distinguished_from_the_one_asked_for():
    reports = [judge(task("05.5"), LocalAnswer((3, rank, 4))) for rank in (0, 1)]
    whys = [report.cases[1].why for report in reports]
    assert ["missing at the end" in why for why in whys] == [True, False]


def test_a_schedule_by_which_replicas_would_drift_is_reported():
    def round_the_circle(world):
        ranks = np.arange(world)
        rounds = [Round.of(ranks, (ranks + 2**s) % world, 0, True) for s in range(world.bit_length() - 1)]
        return Schedule(world, 1, rounds)

    notes = [judge(task("05.3"), LocalAnswer(made)).cases[0].note for made in (round_the_circle, edited("05.3", {}))]
    assert ["drift" in note for note in notes] == [True, False]


def test_one_round_is_no_rounds():
    case = judge(task("05.3"), LocalAnswer(tree)).cases[0]
    assert (case.expected, case.got) == ("at most 1 round", "2 rounds")


def test_pieces_in_the_order_of_backward_are_recognised_by_their_shapes():
    class Backward(edited("14.2", {})):
        def finish(self):
            return super().finish()[::-1]

    asked = task("14.2")
    case = judge(asked, LocalAnswer(Backward), 0, {asked.checks[0].name}).cases[0]
    assert "the result of finish() must be arrays like the shards" in case.got


def test_an_order_of_launch_is_not_blamed_on_dtypes():
    def sorts_the_rest(tensors, ready, cap, first):
        groups = [list(group) for group in plan(tensors, cap, first, ready).groups]
        held = [sum(tensors[i].nbytes for i in group) for group in groups]
        closed = [group for group, size in zip(groups, held, strict=True) if size >= max(cap, first)]
        return closed + sorted(group for group in groups if group not in closed)

    (case,) = [case for case in judge(task("08.1"), LocalAnswer(sorts_the_rest)).cases[1:] if not case.passed]
    assert "another order" in case.why
    assert "dtype" not in case.why


def without_its_return(function):
    def forgets(*args):
        function(*args)

    def generates(*args):
        yield from function(*args)

    return generates if inspect.isgeneratorfunction(function) else forgets


RETURN_NOTHING = {"05.4", "09.1"}  # they change what they are given
SLOW = {"11.1"}


@each("path", SOLUTIONS)
def test_a_forgotten_return_is_reported_as_one_and_once(path):
    for task_id, function in answers(read(path)).items():
        if inspect.isfunction(function) and task_id not in RETURN_NOTHING | SLOW and not task(task_id).none_allowed:
            cases = judge(task(task_id), LocalAnswer(without_its_return(function))).cases
            assert "is a return missing?" in cases[0].got, task_id
            assert {case.like for case in cases[1:]} <= {cases[0].name}, task_id


@each("right_ones", range(4))
def test_which_of_several_predictions_is_wrong_is_not_reported(right_ones):
    right = answers(read(EXERCISES / "solutions" / "01_four_phase_loop.ipynb"))["01.4"]
    message = {name: meter if k < right_ones else "drift" for k, (name, meter) in enumerate(right.items())}
    case = judge(task("01.4"), LocalAnswer(message)).cases[right_ones // 3]
    assert not case.passed
    assert [name for name in message if name in case.expected + case.why] == []
    assert ("no mistake" in case.where) == (right_ones < 3)  # all runs of the check, whichever of them is wrong


def test_no_letter_of_02_2_is_called_wrong():
    cases = [judge(task("02.2"), LocalAnswer((letters, 2))).cases[0] for letters in ("", "A", "ABCE", "BCDF")]
    assert {case.passed for case in cases} == {False}
    assert len({(case.expected, case.why, case.where) for case in cases}) == 1


@each(
    ("name", "message"),
    [
        ("computation only", "days, at most"),
        ("everything sharded", "bytes on a rank that has"),
        ("sequences cut", "sequences for"),
        ("efficiency forgotten", "an efficiency of"),
    ],
)
def test_the_condition_that_a_size_breaks_is_reported(name, message):
    (mutant,) = [each for each in wrong_answers(13).MUTANTS if (each.task, each.name) == ("13.2", name)]
    (case,) = judge(task("13.2"), LocalAnswer(mutant.answer), only={mutant.caught_by}).cases
    assert message in case.got


def test_what_a_rank_keeps_at_a_stage_is_reported():
    (case,) = judge(task("13.1"), LocalAnswer(lambda *case: 3)).cases
    assert "3; there a rank keeps" in case.got


def test_a_wrong_prediction_does_not_reveal_the_right_one():
    reference = answers(read(EXERCISES / "solutions" / "01_four_phase_loop.ipynb"))["01.4"]
    report = str(judge(task("01.4"), LocalAnswer(dict.fromkeys(reference, "neither"))))
    assert "gap" not in report
    assert "both" not in report


def test_the_bytes_of_a_reduce_scatter_are_reported_of_the_largest_world():
    reference = answers(read(EXERCISES / "solutions" / "05_all_reduce.ipynb"))["05.4"]
    case = judge(task("05.4"), LocalAnswer(reference)).cases[-1]
    assert case.note == "672 bytes per rank, at par for 96 numbers on 8 ranks"  # 7 of 8 chunks of 12 · 8 bytes


def test_each_mistake_of_the_exchange_fails_a_check_of_its_own():
    wrong = {mutant.name: mutant for mutant in wrong_answers(16).MUTANTS if mutant.task == "16.3"}
    alone, all_together = task("16.3").checks[:3], task("16.3").checks[3]
    for name, own in zip(
        ("of two at one place the last", "what was rounded off", "what had been kept"), alone, strict=True
    ):
        assert caught_by(wrong[name]) == [own.name, all_together.name]


@pytest.mark.parametrize("path", [of_one_chapter(path) for path in SOLUTIONS])
def test_an_exercise_says_how_many_tasks_and_points_it_has(path):
    tasks = list_tasks(int(path.name[:2]))
    text = "".join(read(EXERCISES / path.name)["cells"][0]["source"])
    number = ["zero", "one", "two", "three", "four", "five", "six"][len(tasks)]
    assert re.search(rf"\b{number} tasks?, {sum(task.points for task in tasks)} points", text, re.IGNORECASE), text
