"""Does a check in a notebook end, whatever the answer does, and does it say where the answer was?"""

import contextlib
import ctypes
import functools
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import wait

import pytest

from dpbook.classroom import Check, Task, call, check, judge, task
from dpbook.classroom.tasks import answer as answer_module
from dpbook.classroom.tasks import notebook_check
from dpbook.classroom.tasks.answer import LocalAnswer, running_loop
from dpbook.classroom.tasks.call_limit import History, ProcessLimit
from dpbook.classroom.tasks.notebook_check import judge_in_process
from dpbook.core import checkout
from dpbook.core.errors import DpbookError, InvalidArgument
from tests.cases import each

SHORT = 0.3
"""CPU seconds of a call whose answer does not return."""


def briefly(answer, rng):
    call(answer, 0, seconds=SHORT)


def task_of(*checks):
    return Task("90.9", "Trial", "name", [Check(str(k), 1, "Because.", run) for k, run in enumerate(checks)])


def endless(number):
    while True:
        pass


def endless_and_deaf(number):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def deaf_and_blocked(number):
    while True:
        try:  # noqa: SIM105
            time.sleep(0.001)
        except:  # noqa: E722
            pass


def endless_in_lines(number):
    total = 1
    while total:
        for k in range(3):
            total += k
            total -= k


def endless_for(number):
    for k in iter(int, 1):
        total = k
        total += 1


def endless_in_c(number):
    return sum(iter(int, 1))


def waits(number):
    time.sleep(60)


def waits_for_a_thread(number):
    thread = threading.Thread(target=endless, args=(number,))
    thread.start()
    thread.join()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (endless, "endless: while True:"),
        (endless_and_deaf, "endless_and_deaf: while True:"),
        (endless_in_lines, "endless_in_lines: while total:"),
        (endless_for, "endless_for: for k in iter(int, 1):"),
        (endless_in_c, "endless_in_c: return sum(iter(int, 1))"),
        (waits_for_a_thread, "endless: while True:"),
        (waits, "waits: time.sleep(60)"),
        (deaf_and_blocked, "deaf_and_blocked: while True:"),
    ],
)
def test_a_call_that_does_not_return_is_ended_and_its_loop_named(answer, line):
    """On a busy machine the clock may end a loop before it has used its CPU time, so either reason may be given."""
    (case,) = judge_in_process(task_of(briefly), answer).cases
    assert case.expected == "an answer in time"
    assert case.got.startswith("none after ")
    assert case.got.endswith(f" of your code, in {line}); later calls get less time")
    assert case.call == "name(0)"


@pytest.mark.processes
def test_an_answer_that_waits_is_not_called_a_loop():
    (case,) = judge_in_process(task_of(briefly), waits).cases
    assert case.got.startswith("none after 1.5 s: does it wait for something that never happens?")


@pytest.mark.processes
def test_a_loop_for_one_input_leaves_the_points_for_the_others():
    runs = [lambda answer, rng, k=k: call(answer, k, seconds=SHORT) and None for k in range(4)]
    cases = judge_in_process(task_of(*runs), lambda k: endless(k) if k in (0, 2) else k).cases
    assert [case.passed for case in cases] == [False, True, False, True]
    assert ["later calls" in case.got for case in cases] == [True, False, False, False]
    assert cases[2].like == "0"


@pytest.mark.processes
def test_what_was_printed_before_a_call_that_does_not_return_is_shown():
    def talks(number):
        print("number", number)
        return endless(number) if number else number

    def twice(answer, rng):
        call(answer, 0)
        call(answer, 1, seconds=SHORT)

    printed = judge_in_process(task_of(twice), talks).printed
    assert printed == "number 0\nnumber 1\n"


@functools.cache
def doubled(number):
    return 2 * number


@functools.lru_cache(maxsize=2)
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def right(answer, rng):
    assert call(answer, 10) == 75


@pytest.mark.processes
@each("answer", [lambda number: doubled(number) + fibonacci(number), functools.cache(lambda number: 75)])
def test_a_function_with_a_cache_can_be_judged(answer):
    assert judge_in_process(task_of(right), answer).cases[0].passed


@pytest.mark.processes
def test_a_module_of_the_learner_is_judged_as_it_was_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "learners_module.py").write_text("def seventy_five(number):\n    return 75\n")
    import learners_module

    (tmp_path / "learners_module.py").write_text("def seventy_five(number):\n    return 0\n")
    assert judge_in_process(task_of(right), lambda number: learners_module.seventy_five(number)).cases[0].passed


@pytest.mark.processes
def test_an_answer_sees_the_environment_of_the_notebook(monkeypatch):
    notebook_check.prepare()
    monkeypatch.setenv("SET_LATER", "75")
    assert judge_in_process(task_of(right), lambda number: int(os.environ["SET_LATER"])).cases[0].passed


@pytest.mark.processes
def test_a_process_that_an_answer_forks_reports_nothing():
    def forks(number):
        if os.fork() == 0:
            return 75
        os.wait()
        return 75

    assert [case.passed for case in judge_in_process(task_of(right, right), forks).cases] == [True, True]


@pytest.mark.processes
def test_an_answer_that_cannot_be_rebuilt_is_an_error_that_says_why():
    class Broken:
        def __reduce__(self):
            return int, ("no number",)

    broken = Broken()
    with pytest.raises(DpbookError, match=r"cannot be unpickled in the process of its check \(ValueError: "):
        judge_in_process(task_of(right), lambda number: broken)


@pytest.mark.processes
def test_a_process_that_was_lost_before_it_called_the_answer_is_replaced():
    notebook_check.prepare()
    (waiting,) = notebook_check._waiting
    wait([waiting._listener], 60)  # it has loaded
    waiting._started.launcher.send("end")
    wait([waiting._started.launcher], 60)
    assert judge_in_process(task_of(right), lambda number: 75).cases[0].passed


def raised(error):
    raise error


@pytest.mark.processes
@each(
    ("end", "got"),
    [
        (lambda number: os._exit(3), "its process ended with exit status 3"),
        (lambda number: ctypes.string_at(0), "its process was killed by SIGSEGV (line "),
        (lambda number: raised(KeyboardInterrupt), "KeyboardInterrupt (line "),
        (lambda number: os.kill(os.getpid(), signal.SIGKILL), "its process was killed by SIGKILL"),
    ],
)
def test_an_answer_that_ends_its_process_fails_one_check(end, got):
    def sound(answer, rng):
        assert call(answer, 1) == 1

    cases = judge_in_process(task_of(briefly, sound), lambda number: number or end(number)).cases
    assert cases[0].got.startswith(got)
    assert [case.passed for case in cases] == [False, True]


@pytest.mark.processes
@pytest.mark.proof
def test_an_answer_that_ignores_its_timer_is_ended_all_the_same(monkeypatch):
    monkeypatch.setattr(notebook_check, "SHUTDOWN_SECONDS", 20.0)
    monkeypatch.setattr(answer_module, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(notebook_check, "CHECK_SECONDS", 0.1)

    def ignores(number):
        for expired in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(expired, signal.SIG_IGN)
        endless(number)

    (case,) = judge_in_process(task_of(briefly), ignores).cases
    assert case.got.startswith("its process exceeded the time limit")


@pytest.mark.processes
def test_a_report_is_the_one_of_an_answer_that_is_called_here(all_reduce):
    for answer in (all_reduce, lambda buffers: buffers + 1, lambda buffers: buffers[99], 7, None):
        there, here = check("90.1", answer), judge(task("90.1"), LocalAnswer(answer))
        assert there.cases == here.cases


@pytest.mark.processes
def test_each_check_has_a_process_of_its_own():
    """Nothing that an answer changes in its process is there in the next check."""
    seen = []

    def counts(number):
        seen.append(number)
        return len(seen)

    def returns_one(answer, rng):
        assert call(answer, 0) == 1

    for _ in range(2):
        assert judge_in_process(task_of(returns_one), counts).passed
    assert seen == []


def test_an_answer_that_cannot_be_pickled_is_refused():
    lock = threading.Lock()

    def holds_a_lock(buffers):
        with lock:
            return buffers

    with pytest.raises(InvalidArgument, match="answer"):
        check("90.1", holds_a_lock)


def test_a_process_that_does_not_start_is_an_error_that_says_why(monkeypatch):
    class Dead:
        launcher = 0

        def end(self):
            return {}, "no more processes"

    monkeypatch.setattr(notebook_check, "_waiting", [])
    monkeypatch.setattr(notebook_check, "_begin", lambda folder: Dead())
    monkeypatch.setattr(notebook_check, "wait", lambda objects, timeout: [Dead.launcher])
    with pytest.raises(DpbookError, match=r"did not start; .*no more processes"):
        judge_in_process(task_of(briefly), abs)


def test_the_source_of_a_module_that_is_not_read_yet_stays_here():
    linecache.cache["/somewhere/of_the_learner.py"] = (lambda: "",)
    try:
        request = notebook_check._Run(task_of(briefly), b"")._request()
        assert "/somewhere/of_the_learner.py" not in request.sources
    finally:
        del linecache.cache["/somewhere/of_the_learner.py"]


STOPPED = """
import os, signal, sys, threading, time
from dpbook.classroom import Check, Task, call
from dpbook.classroom.tasks.notebook_check import judge_in_process

path = sys.argv[1]

def waits(number):
    with open(path, "w") as file:
        print(os.getpid(), file=file, flush=True)
    time.sleep(600)

def presses_stop():
    while not (os.path.exists(path) and os.path.getsize(path)):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=presses_stop, daemon=True).start()
try:
    one = Check("c", 1, "w", lambda answer, rng: call(answer, 0, seconds=60), seconds=60)
    judge_in_process(Task("90.9", "T", "f", [one]), waits)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.processes
def test_the_stop_button_ends_the_answer(tmp_path):
    path = tmp_path / "process"
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    command = [sys.executable, "-c", STOPPED, str(path)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert run.stdout == "interrupted\n", run.stderr
    process = int(path.read_text())
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{process}") and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.fixture
def limit(tmp_path, monkeypatch):
    """A limit in this process, whose timers are noted and not set."""
    timers = []
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: timers.append((which, seconds)))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("faulthandler.register", lambda *_, **__: None)
    limit = ProcessLimit(tmp_path, "name", History())
    limit.timers = timers
    yield limit
    limit._stack.close()
    os.close(limit._call)


def given(limit, seconds):
    """CPU seconds that a call gets that may have ``seconds``."""
    limit.timers.clear()
    with limit.call(seconds):
        return dict(limit.timers)[signal.ITIMER_PROF]


def test_a_call_gets_its_seconds_and_no_more_than_its_check_has_left(limit):
    limit.begin_check(5.0)
    assert given(limit, 2.0) == 2.0
    limit._cpu_left = 0.5
    assert given(limit, 2.0) == 0.5
    limit._cpu_left = 0.5
    assert given(limit, 120.0) == 0.5


def test_after_a_time_out_calls_get_a_quarter_and_slow_ones_three_times_what_they_took(limit):
    limit._history.timed_out = True
    limit.begin_check(5.0)
    assert given(limit, 2.0) == 0.5
    limit._history.longest = 0.6
    assert given(limit, 2.0) == pytest.approx(1.8)


def test_of_several_threads_the_one_that_runs_the_answer_is_named(tmp_path):
    source = tmp_path / "answer.py"
    source.write_text("def f():\n    for k in range(3):\n        while k:\n            g()\n\n\ndef g():\n    pass\n")
    stacks = (
        f'Thread 0x1 (most recent call first):\n  File "{source}", line 8 in g\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/lib/python3.11/threading.py", line 1 in wait\n'
        f'  File "{source}", line 4 in f\n'
    )
    with contextlib.suppress(ValueError):
        stacks = stacks.replace("/lib/python3.11/threading.py", threading.__file__)
    assert running_loop(stacks) == "line 3 of your code, in f: while k:"
    assert running_loop("") == ""
