"""Is each answer waited for as long as it should be, whatever the order of judging?"""

import math
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpbook.classroom.marks.grading import PATIENT, AnsweredTask, JudgedAnswer, again, remarks
from dpbook.classroom.sandbox import clock
from dpbook.classroom.sandbox.clock import Clock, TimeLimitExceeded
from dpbook.classroom.sandbox.remote_answer import RemoteAnswer
from dpbook.classroom.tasks.answer import Wrong
from dpbook.classroom.tasks.report import Report
from dpbook.core import checkout

ANSWERS = [AnsweredTask(f"01.{k}", ()) for k in range(1, 21)]


def judged_until_nothing_waits(late, ends_later):
    """Answers judged in all, and what is known at the end."""
    done = {one: JudgedAnswer(Report(one.task, "", ()), late=one in late) for one in ANSWERS}
    while waiting := [one for one in again(ANSWERS, done) if one not in done]:
        done |= {
            one: JudgedAnswer(Report(one.task, "", ()), late=replace(one, hurried=True) not in ends_later)
            for one in waiting
        }
    return done


def test_slow_answers_are_all_judged_again():
    done = judged_until_nothing_waits(ANSWERS, ANSWERS)
    assert len(done) == 2 * len(ANSWERS)
    assert remarks(ANSWERS, done) == []


def test_answers_that_never_end_are_judged_again_a_few_times_and_the_rest_is_reported():
    done = judged_until_nothing_waits(ANSWERS[3:], [])
    assert [one.task for one in done if not one.hurried] == [one.task for one in ANSWERS[3 : 3 + PATIENT]]
    (remark,) = remarks(ANSWERS, done)
    assert remark.startswith("17 answers did not end")
    assert remark.endswith(f"the other {17 - PATIENT} were not tried again")


def test_slow_answers_among_those_that_never_end_take_no_turn_from_them():
    done = judged_until_nothing_waits(ANSWERS, ANSWERS[:5])
    assert sum(not one.hurried for one in done) == 5 + PATIENT


def test_what_was_judged_again_for_somebody_else_changes_nothing():
    done = judged_until_nothing_waits(ANSWERS, [])
    alone = again(ANSWERS, done)
    more = done | {replace(one, hurried=False): done[one] for one in ANSWERS}
    assert again(ANSWERS, more) == alone


def test_one_text_in_two_notebooks_is_one_answer():
    done = judged_until_nothing_waits(ANSWERS[:1], [])
    assert len(again([*ANSWERS, *ANSWERS], done)) == 1


@pytest.mark.parametrize(
    ("computed", "remaining", "late"),
    [((0.9, 0.9, 0.9), 5.0, False), ((0.1, 1.1, 0.1), 5.0, True), ((0.9, 0.9), 1.5, True)],
)
def test_each_rank_may_compute_as_long_as_a_call_and_all_as_long_as_the_check(computed, remaining, late, monkeypatch):
    now = dict.fromkeys(range(len(computed)), 0.0)
    monkeypatch.setattr(clock, "seconds_of", now.__getitem__)
    watched = Clock()
    watched.known = list(now)
    watched.begin_check(remaining)
    watched.begin_call(1.0)
    watched._begun -= 100
    now |= enumerate(computed)
    with pytest.raises(TimeLimitExceeded) if late else nullcontext():
        watched.look()


def test_a_call_that_waits_ends_when_its_patience_is_over(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watched = Clock(patience=3.0)
    watched.begin_call(1.0)
    now[0] = 2.9
    watched.look()
    now[0] = 3.1
    with pytest.raises(TimeLimitExceeded):
        watched.look()


def test_who_is_hurried_has_two_seconds_where_a_task_gives_many():
    def late():
        raise TimeLimitExceeded

    answer = RemoteAnswer(None, (), "train", torch=True, hurried=True)
    answer.begin(120.0)
    with pytest.raises(Wrong, match="none after 2 s"):
        answer._run(late, math.inf)


def test_who_has_used_up_the_time_of_a_check_is_reported():
    def late():
        raise TimeLimitExceeded

    answer = RemoteAnswer(None, (), "plan")
    answer.begin(5.0)
    answer._clock._left = 0.5
    with pytest.raises(Wrong, match="none after 5 s in this check"):
        answer._run(late, 2.0)


DROPPED = """
import contextlib, time
from dpbook.classroom.marks import grading

def judge(*_):
    with contextlib.suppress(BaseException):
        time.sleep(60)
    time.sleep(60)

grading.judge, grading.HURRIED, grading.ALARM_AGAIN = judge, 1e-4, 0.2
grading._given[:] = None, 0
print(grading._judge(grading.AnsweredTask("01.1", ())).late)
"""


def test_a_judge_that_drops_an_alarm_gets_another_one():
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    run = subprocess.run([sys.executable, "-c", DROPPED], env=env, capture_output=True, text=True, timeout=100)
    assert run.stdout == "True\n", run.stderr
