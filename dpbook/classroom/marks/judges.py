"""Judges: processes that judge answers, none of which runs a line of them.

All answers are judged with less time first, and those that have not ended once more with all of it. So loops cost
little, and a slow answer loses nothing. Where several answers of a submission never end, its others are not judged
again: somebody else is waiting.
"""

import contextlib
import gc
import multiprocessing
import os
import resource
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

from dpbook.classroom.marks.cells import needs_torch
from dpbook.classroom.sandbox import containment
from dpbook.classroom.sandbox.clock import PATIENCE
from dpbook.classroom.sandbox.containment import MIB, mapped
from dpbook.classroom.sandbox.remote_answer import RemoteAnswer
from dpbook.classroom.sandbox.servers import Servers
from dpbook.classroom.tasks.answer import CHECK_SECONDS
from dpbook.classroom.tasks.judging import judge
from dpbook.classroom.tasks.load_tasks import list_tasks, task
from dpbook.classroom.tasks.report import Case, Report
from dpbook.core import DpbookError

MEMORY = 4096 * MIB
HURRIED = 1 / 4
"""Share of its time that a judge has for an answer which is hurried."""
ALARM_AGAIN = 10.0
"""Seconds after which a judge gets another alarm: Python drops what is raised in some callbacks."""
ENDED = "the check could not be finished on what the answer gave back"


@dataclass(frozen=True)
class Work:
    """A task, and the cells that answer it: the same ones get the same marks, so they are judged once."""

    task: str
    cells: tuple[tuple[str, str], ...]
    hurried: bool = True

    @property
    def torch(self) -> bool:
        return needs_torch(self.cells)


@dataclass(frozen=True)
class Judged:
    """Report of a judged task. ``late``: the answer has not ended in time."""

    report: Report
    together: bool = False
    guards: Mapping[str, bool] = field(default_factory=dict)
    late: bool = False


def judged(work: Sequence[Work], servers: Servers, seed: int, jobs: int) -> Iterator[tuple[Work, Judged]]:
    """Each task with what came of it, in any order. A judge that is ended takes no other task with it."""
    left = dict.fromkeys(work)
    for one, result in _in_pool(work, servers, seed, jobs):
        del left[one]
        yield one, result
    for one in left:  # one by one, to see whose it is
        yield one, next((result for _, result in _in_pool([one], servers, seed, 1)), not_judged(one))


def _in_pool(work: Sequence[Work], servers: Servers, seed: int, jobs: int) -> Iterator[tuple[Work, Judged]]:
    """Judge as `judged` does, up to where a judge is ended."""
    fork = multiprocessing.get_context("fork")
    others = multiprocessing.active_children()
    places = fork.SimpleQueue()
    for number in range(jobs):
        places.put(_cores(number, jobs))
    with ProcessPoolExecutor(jobs, fork, _begin, (servers, seed, places)) as pool:
        futures = {pool.submit(_judge, one): one for one in work}
        with contextlib.suppress(BrokenProcessPool):
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except (KeyboardInterrupt, SystemExit):  # what is being judged now may take minutes
                for each in set(multiprocessing.active_children()) - set(others):
                    each.kill()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _cores(number: int, jobs: int) -> set[int]:
    """Return the cores on which a judge and its answers may run: its own one where each core has a judge.

    What passes between processes on one core costs a fifth less than what wakes another.
    """
    cores = sorted(os.sched_getaffinity(0))
    return {cores[number % len(cores)]} if jobs >= len(cores) else set(cores)


_given: list[Any] = []


def _begin(servers: Servers, seed: int, places: Any) -> None:
    """A judge begins, which takes no more memory than it needs."""
    containment.die_with_parent()
    os.sched_setaffinity(0, places.get())
    gc.freeze()
    _given[:] = servers, seed
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (mapped() + MEMORY,) * 2)


class _Late(BaseException):
    """A check has taken too long on what it was given."""


def _judge(one: Work) -> Judged:
    servers, seed = _given
    asked = task(one.task)
    answer = RemoteAnswer(servers, one.cells, asked.answer, torch=one.torch, hurried=one.hurried)

    def late(*_: object) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, late)
    most = 60 + PATIENCE * sum(check.seconds or CHECK_SECONDS for check in asked.checks)
    signal.setitimer(signal.ITIMER_REAL, HURRIED * most if one.hurried else most, ALARM_AGAIN)
    try:
        return Judged(judge(asked, answer, seed), answer.beside, answer.guards, answer.late)
    except _Late:
        return replace(not_judged(one), late=True)
    except DpbookError:
        return not_judged(one)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        answer.close()


def not_judged(one: Work, why: str = ENDED) -> Judged:
    asked = next(each for each in list_tasks(int(one.task[:2])) if each.id == one.task)
    cases = [Case(c.name, c.points, False, "a value that can be judged", why) for c in asked.checks]
    return Judged(Report(asked.id, asked.title, tuple(cases)))


PATIENT = 3
"""Answers of a submission that may end not even with all their time, before its others are not judged again."""


def again(answers: Iterable[Work], results: Mapping[Work, Judged]) -> list[Work]:
    """Return those of a submission's ``answers`` to judge with all their time: the late ones, up to where `PATIENT`
    of them are known not to have ended, or may come not to."""
    chosen, lost = [], 0
    for one in dict.fromkeys(answers):
        if results[one].late and lost < PATIENT:
            chosen.append(replace(one, hurried=False))
            lost += chosen[-1] not in results or results[chosen[-1]].late
    return chosen


def remarks(answers: Iterable[Work], results: Mapping[Work, Judged]) -> list[str]:
    """Return remarks for a submission on answers that were not judged again."""
    late = sum(results[one].late for one in dict.fromkeys(answers))
    left = late - len(again(answers, results))
    if not left:
        return []
    return [
        f"{late} answers did not end in a short time. The first of them were tried again with more, and {PATIENT} of "
        f"these did not end either: the other {left} were not tried again"
    ]
