"""Is every kind of answer judged right, whatever it does but loop?"""

import builtins
import signal
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dpbook.classroom import (
    Check,
    LocalAnswer,
    Task,
    Wrong,
    call,
    expect_equal,
    expect_number,
    judge,
    of_all_checks,
    task,
)
from dpbook.collectives import Schedule, reduce_scatter, ring, run
from dpbook.core.errors import InvalidArgument
from tests.cases import each


def check(task_id, answer, *, seed=0):
    """Judge an answer that is known to return, in this process."""
    return judge(task(task_id), LocalAnswer(answer), seed)


def failed(report):
    return [case.name for case in report.cases if not case.passed]


def first(report):
    return next(case for case in report.cases if not case.passed)


def test_a_right_answer_earns_every_point(all_reduce):
    report = check("90.1", all_reduce)
    assert (report.points, report.possible, report.passed) == (4, 4, True)


def test_every_case_has_its_own_verdict(all_reduce):
    def forgets_small_buffers(buffers):
        return all_reduce(buffers) if buffers.shape[1] > 4 else buffers

    report = check("90.1", forgets_small_buffers)
    assert failed(report) == ["small buffers"]
    assert report.points == 3


def test_a_wrong_number_is_located(all_reduce):
    def wrong_on_the_last_rank(buffers):
        result = all_reduce(buffers)
        result[-1, 3] += 1
        return result

    case = first(check("90.1", wrong_on_the_last_rank))
    assert case.where.startswith("world 1: rank 0, element 3: ")


def test_the_learners_line_and_message_are_shown():
    def raises(buffers):
        return buffers[99, 0]

    got = first(check("90.1", raises)).got
    assert got.startswith("IndexError: index 99 is out of bounds")
    assert "of your code, in raises: return buffers[99, 0]" in got


def one_check(run):
    return Task("90.9", "Trial", "name", [Check("only", 1, "Because.", run)])


def test_the_stop_button_interrupts():
    def presses_stop(buffers):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        check("90.1", presses_stop)


def leaves(buffers):
    raise SystemExit(0)


def recurses(buffers):
    return recurses(buffers)


def generates(buffers):
    yield buffers


class Unprintable(Exception):
    def __str__(self):
        raise self


def raises_the_unprintable(buffers):
    raise Unprintable


@each(
    ("answer", "got"),
    [
        (leaves, "SystemExit: 0"),
        (recurses, "RecursionError: "),
        (generates, "a generator"),
        (raises_the_unprintable, "an error that cannot be printed"),
        (lambda buffers: None, "your function returned None: is a return missing?"),
        (lambda buffers: "right", "a str, 'right'"),
        (lambda buffers: buffers.sum(axis=0), "an array of shape (7,), float64"),
        (lambda buffers: buffers.astype(np.float32), "an array of shape (1, 7), float32"),
        (lambda buffers: buffers.tolist(), "a list of 1: [["),
        (lambda buffers: [0] * 10**7, "a value of more than 200,000 items"),
        (lambda buffers: np.broadcast_to(0.0, (10**6, 10**6)), "an array of 8,000,000,000,000 bytes"),
        (lambda buffers: SimpleNamespace(), "a SimpleNamespace"),
        (lambda: 0, "TypeError: "),
        (7, "an int, 7"),
    ],
)
def test_what_came_is_said_in_a_sentence(answer, got):
    report = check("90.1", answer)
    assert not report.cases[0].passed
    assert first(report).got.startswith(got)


def test_none_is_no_missing_return_where_a_task_allows_it():
    def finds(answer, rng):
        expect_equal(3, call(answer))

    allowed = replace(one_check(finds), none_allowed=True)
    reports = [judge(each, LocalAnswer(lambda: None)) for each in (one_check(finds), allowed)]
    assert [first(report).got for report in reports] == ["your function returned None: is a return missing?", "None"]


def lost_its_return(buffers):
    np.tile(buffers.sum(axis=0), (len(buffers), 1))


def has_a_typo(buffers):
    return bufers.sum()  # noqa: F821


def another_message_each_time(buffers):
    raise ValueError(str(buffers.shape))


def waits_for_itself(buffers):
    run(lambda comm, x: comm.recv(x, 1 - comm.rank), [buffers[0], buffers[0]])


@each("answer", [lost_its_return, has_a_typo, another_message_each_time, waits_for_itself, 7, lambda buffers: print])
def test_one_cause_is_reported_once_and_without_the_checks_own_reason(answer):
    causes = [(case.like, case.why, [*case.details()] != []) for case in check("90.1", answer).cases if not case.passed]
    assert causes[:2] == [("", "", True), ("the sum on every rank", "", False)]


def test_a_wrong_schedule_is_one_cause_whatever_a_check_asks_of_it():
    """05.3 wants few rounds and few bytes: of a schedule that loses contributions neither says anything."""
    wrong = [case for case in check("05.3", reduce_scatter).cases if not case.passed]
    assert [bool(case.like) for case in wrong] == [False, True]
    assert [case.why for case in wrong] == ["", ""]


def test_each_rank_of_a_deadlock_has_a_line():
    lines = first(check("90.1", waits_for_itself)).got.splitlines()
    assert ["rank 0 waits" in lines[1], "rank 1 waits" in lines[2], len(lines)] == [True, True, 3]


def test_errors_on_two_lines_are_two_causes():
    def raises(buffers):
        if buffers.shape[1] < 4:
            return buffers[99]
        return buffers[98]

    report = check("90.1", raises)
    assert [case.like for case in report.cases] == ["", "", "the sum on every rank"]
    assert "fails for the same reason as “the sum on every rank”" in repr(report)


def test_wrong_values_of_two_checks_have_two_reasons(all_reduce):
    report = check("90.1", lambda buffers: all_reduce(buffers) + 1)
    assert [case.why for case in report.cases[:2]] == [
        "A rank with another sum drifts.",
        "Buffers do not divide by the world.",
    ]


def three_checks():
    """Each calls the answer with its number; an answer that returns passes."""
    run = [lambda answer, rng, number=number: call(answer, number) and None for number in range(3)]
    return Task("90.9", "Trial", "name", [Check(str(k), 1, "Because.", one) for k, one in enumerate(run)])


def test_the_call_that_failed_is_shown_as_python():
    seen = []

    def keeps(buffers):
        seen.append(buffers.copy())
        return np.zeros(3)

    shown = first(check("90.1", keeps)).call
    again = eval(shown, {"all_reduce": keeps, "np": np})
    assert again.tolist() == [0, 0, 0]
    assert np.array_equal(seen[0], seen[-1])


def test_a_call_through_a_function_is_shown_where_the_check_says_how():
    def fails(answer, rng, **options):
        call(answer, "data", through=lambda function, data: function(3), **options)
        raise Wrong("more", "less")

    by_hand = [{}, {"by_hand": (3,)}, {"by_hand": "twice(name, 3)"}]
    shown = [first(judge(one_check(partial(fails, **options)), LocalAnswer(abs))).call for options in by_hand]
    assert shown == ["", "name(3)", "twice(name, 3)"]


def test_a_check_may_say_another_reason():
    def wrong(answer, rng):
        raise Wrong("more", "less", why="As always.")

    assert first(judge(one_check(wrong), LocalAnswer(abs))).why == "As always."


def test_changed_inputs_are_found(all_reduce):
    def adds_in_place(buffers):
        buffers[0] += buffers[1:].sum(axis=0)
        return np.tile(buffers[0], (len(buffers), 1))

    report = check("90.1", adds_in_place)
    assert failed(report) == ["inputs stay"]
    assert first(report).expected.startswith("argument 1 unchanged: ")


def test_a_check_sees_its_own_inputs_not_the_changed_ones():
    def zeroes_everything(buffers):
        buffers[:] = 0
        return buffers

    assert "the sum on every rank" in failed(check("90.1", zeroes_everything))


def test_prints_are_shown_and_cut(all_reduce, capsys):
    def chatty(buffers):
        print("x" * 100_000)
        return all_reduce(buffers)

    report = check("90.1", chatty)
    assert report.points == 4
    assert report.printed.startswith("xxx")
    assert len(report.printed) < 2000
    assert capsys.readouterr() == ("", "")


def always_true(*args, **kwargs):
    return True


def test_replacing_what_numpy_compares_with_fools_nobody(monkeypatch):
    names = ("allclose", "array_equal", "isclose", "equal", "less_equal", "all", "any", "testing")
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(np, name, always_true)
        report = check("90.1", lambda buffers: buffers * 0 - 1)
    assert failed(report) == ["the sum on every rank", "small buffers"]


class Liar:
    """Equal to everything, true, and an array of whatever is wanted."""

    def __eq__(self, other):
        return True

    __hash__ = None
    __bool__ = __le__ = __lt__ = __ge__ = always_true

    def __array__(self, *args, **kwargs):
        raise AssertionError("nobody should ask")

    def __array_ufunc__(self, *args, **kwargs):
        return True

    def __abs__(self):
        return 0

    def __sub__(self, other):
        return 0

    __rsub__ = __sub__


class LyingArray(np.ndarray):
    def __eq__(self, other):
        return np.ones(self.shape, bool)

    def __array_ufunc__(self, *args, **kwargs):
        return np.ones(self.shape, bool)


class LyingFloat(float):
    def __eq__(self, other):
        return True

    def __rsub__(self, other):
        return 0.0

    __hash__ = float.__hash__


@pytest.mark.parametrize(
    "answer", [lambda buffers: Liar(), lambda buffers: np.full_like(buffers, -1).view(LyingArray), Liar()]
)
def test_an_object_that_lies_is_taken_apart(answer):
    assert not check("90.1", answer).cases[0].passed


@each("number", [LyingFloat(3), Liar(), "1.875", True, [1.875], float("nan"), 10**400, lambda: 1.875])
def test_a_number_that_is_none_or_lies_fails(number):
    assert check("90.2", number).points == 0


@pytest.mark.parametrize("number", [1.875, np.float32(1.875), np.array(1.875), LyingFloat(1.875), 1.875 + 1e-12])
def test_a_right_number_passes_in_every_form(number):
    assert check("90.2", number).points == 1


class LyingSchedule(Schedule):
    def walk(self):
        return iter(ring(self.world).rounds)


@each(
    ("answer", "got"),
    [
        (lambda world: Schedule(world, world, ring(world).rounds[:-1]), "lost contribution"),
        (lambda world: Schedule(world, world, [*ring(world).rounds, *ring(world).rounds]), "double contribution"),
        (lambda world: Schedule(world, 1, [], before=ring(world).after[:1]), "complete on every rank"),
        (lambda world: ring(world + 1), "one for "),
        (lambda world: list(ring(world).rounds), "a Round"),
        (lambda world: world, "an int, "),
    ],
)
def test_a_schedule_is_judged_by_what_it_does(answer, got):
    assert first(check("90.10", answer)).got.startswith(got)


def test_a_schedule_cannot_change_between_two_looks():
    looks = []

    class Fickle(list):
        def __iter__(self):
            looks.append(1)
            return iter(ring(4).rounds if len(looks) == 1 else [])

    task = one_check(lambda answer, rng: repr([call(answer), call(answer)]))
    assert judge(task, LocalAnswer(lambda: Schedule(4, 4, Fickle(ring(4).rounds)))).passed
    assert check("90.10", lambda world: LyingSchedule(world, world, [])).cases[0].passed  # what it yields is right


def test_par_is_noted(build):
    assert check("90.10", build).cases[0].note.endswith("rounds, at par")


def test_a_check_calls_through_a_function_of_its_own():
    def in_place(function, x):
        function(x)
        return x

    def run(answer, rng):
        got = call(answer, np.zeros(3), through=in_place)
        if got.tolist() != [1, 1, 1]:
            raise Wrong("ones", "others")

    def add_one(x):
        x += 1

    assert judge(one_check(run), LocalAnswer(add_one)).passed


def stub(buffers):
    # YOUR CODE HERE
    raise NotImplementedError


def stub_in_another_thread(buffers):
    try:
        stub(buffers)
    except NotImplementedError as error:
        raise RuntimeError("rank 0 failed") from error


@pytest.mark.parametrize("answer", [stub, stub_in_another_thread, None, ...])
def test_a_stub_is_not_an_answer(answer):
    report = check("90.1", answer)
    assert not report.answered
    assert repr(report) == "90.1 All-reduce: not answered yet, 0 of 4 points"


def test_an_answer_for_some_inputs_alone_is_one(all_reduce):
    report = check("90.1", lambda buffers: all_reduce(buffers) if len(buffers) == 4 else stub(buffers))
    assert report.answered
    assert report.points == 1


def test_a_check_that_stumbles_over_odd_data_fails_it():
    report = judge(one_check(lambda answer, rng: call(answer)["key"]), LocalAnswer(dict))
    assert first(report).got == "a value on which the check failed: KeyError: 'key'"


def test_the_seed_decides_the_instances():
    seen = []
    answer = LocalAnswer(lambda buffers: seen.append(buffers.tolist()))
    task = one_check(lambda answer, rng: call(answer, rng.normal(size=3)))
    for seed in (0, 0, 1):
        judge(task, answer, seed)
    assert seen[0] == seen[1] != seen[2]


def test_checks_draw_independently(all_reduce):
    draws = []
    checks = [Check(name, 1, "Because.", lambda answer, rng: draws.append(rng.random())) for name in "ab"]
    judge(Task("90.9", "Trial", "name", checks), LocalAnswer(0))
    assert draws[0] != draws[1]


@pytest.mark.parametrize(("returned", "points"), [(1.0, 3), ("text", 0)])
def test_checks_that_look_at_the_same_run_make_it_once(returned, points):
    asked = []

    def run(answer, rng):
        expect_number(call(answer, of_all_checks(rng).normal(size=2), once=True))

    checks = [Check(name, 1, "Because.", run) for name in "abc"]
    answer = LocalAnswer(lambda drawn: asked.append(drawn.tolist()) or returned)
    assert judge(Task("90.9", "Trial", "name", checks), answer, 5).points == points
    assert judge(Task("90.9", "Trial", "name", checks), answer, 6).points == points
    assert len(asked) == 2
    assert asked[0] != asked[1]


def test_what_one_run_has_raised_says_nothing_of_the_next():
    """A call may be late by accident: that costs the points of one check."""
    asked = []

    def fails_first(*given):
        asked.append(given)
        if len(asked) == 1:
            raise ValueError("by accident")
        return 1.0

    checks = [Check(name, 1, "Because.", lambda answer, rng: call(answer, 1, once=True)) for name in "abc"]
    report = judge(Task("90.9", "Trial", "name", checks), LocalAnswer(fails_first))
    assert [case.passed for case in report.cases] == [False, True, True]
    assert len(asked) == 2


@pytest.mark.parametrize("seed", [-1, 1.5, None])
def test_a_seed_is_a_number(seed, all_reduce):
    with pytest.raises(InvalidArgument, match="seed must be"):
        check("90.1", all_reduce, seed=seed)


def test_builtins_are_left_as_they_are(all_reduce):
    before = builtins.print
    check("90.1", all_reduce)
    assert builtins.print is before
