"""An answer that runs in processes of its own, one for each rank, behind the same door as one of this process.

What a check hands to `call` as ``through`` runs here, with what stands for the learner's function: whatever that is
given which acts (a rank's end of the wires, a gradient's function) stays here too, and is called from there. So what
is judged is what this side saw. Only what it gives to ``hosted`` runs in the answer's process.
"""

import copy
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dpbook.grading.answer import CALL_SECONDS, CHECK_SECONDS, MAX_PRINTED, Asked, NotAnswered, Through, Wrong
from dpbook.grading.apart.families import delay_of, held_and_computed
from dpbook.grading.apart.servers import HELD, Keeper, Servers
from dpbook.grading.apart.worker import NOT_PLAIN, Failed, Gone, Worker
from dpbook.grading.blaming import blame, causes
from dpbook.grading.text import describe_kind
from dpbook.grading.values import NotPlain, difference, plain
from dpbook.ranks import seconds_of, waits

LOAD_SECONDS = 4.0
PATIENCE = 10.0
"""How many times as long as it may compute a call may take in all: it may wait, and the machine may be busy."""
AFTER_TIME_UP = 0.25
HURRIED = {False: 1 / 8, True: 1 / 2}
"""Share of its time that an answer has which is hurried, without and with torch, whose first calls take long."""
LOOK = 0.5
"""Seconds between looks at how much memory is held."""
Cells = Sequence[tuple[str, str]]


class TimeUp(Exception):
    """A call has not ended in time."""


class TooMuch(Exception):
    """The processes of an answer hold more memory than they may."""


class RemoteAnswer:
    """The answer called ``name`` that ``cells`` leave behind, in processes of ``servers``. Close it to end them.

    It is ``late`` once a call has not ended in time, of which there is less for one that is ``hurried``.
    """

    apart = True

    def __init__(
        self, servers: Servers, cells: Cells, name: str, *, torch: bool = False, hurried: bool = False
    ) -> None:
        self._servers, self._cells, self._name, self._torch = servers, cells, name, torch
        self._share = HURRIED[torch] if hurried else 1.0
        self.late = False
        self.guards: dict[str, bool] = {}
        self.beside = False
        self.printed = ""
        self._keeper: Keeper | None = None
        self._free: list[Worker] = []
        self._all: list[Worker] = []
        self._mine: dict[int, Worker] = {}
        self._kind: str | None = None
        self._broken: Wrong | None = None
        self._lock = threading.Lock()
        self._starting = 0
        self._stop: Exception | None = None
        self._begin_call(LOAD_SECONDS)
        self.begin()

    def begin(self, seconds: float | None = None) -> None:
        self.asked: Asked | None = None
        self._whole = self._left = CHECK_SECONDS if seconds is None else seconds
        self._left_in_all = PATIENCE * self._whole

    def close(self) -> None:
        """End its processes."""
        for worker in self._all:
            worker.close()
        self._all, self._free, self._mine = [], [], {}
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def value(self) -> Any:
        self._check_loaded()
        if self._kind == "":
            raise NotAnswered
        return self._run(lambda: self._worker().request("value"), CALL_SECONDS)

    def call(self, args: tuple[Any, ...], through: Through | None, unchanged: bool, seconds: float) -> Any:
        self._check_loaded()
        if self._kind == "":
            raise NotAnswered
        if self._kind == "value":
            said = describe_kind(self.value())
            raise Wrong("a function", said, cause="no function")
        given = copy.deepcopy(args)
        if through is None:
            return self._run(lambda: self._one(given, live=False, unchanged=unchanged), seconds)
        other: Through = getattr(through, "apart", through)

        def function(*own: Any) -> Any:
            return self._one(own, live=True, unchanged=unchanged)

        function.__name__ = function.__qualname__ = self._name
        function.hosted = self._hosted  # type: ignore[attr-defined]
        return self._run(lambda: plain(other(function, *given)), seconds)

    def _one(self, args: tuple[Any, ...], live: bool, unchanged: bool) -> Any:
        """One call of the learner's function, in the process of this thread."""
        worker = self._worker()
        before = copy.deepcopy(args) if unchanged else ()
        result, after = worker.request("call", None, args, live, unchanged)
        if worker.answered_for_objects:  # it belongs to these now: another call of this thread gets another process
            self._mine.pop(threading.get_ident(), None)
        if unchanged:
            _check_unchanged(before, after)
        return result

    def _hosted(self, harness: Callable[..., Any], *args: Any) -> Any:
        """``harness(answer, *args)`` in the process of this thread, which could say something else."""
        self.beside = True
        return self._worker().request("beside", harness, args)

    def _check_loaded(self) -> None:
        """Run the cells, once. Raises what that came to, in every check."""
        if self._kind is None and self._broken is None:
            try:
                self._kind = self._run(lambda: self._worker().request("kind"), LOAD_SECONDS, loading=True)
            except Wrong as wrong:
                self._broken = wrong
        if self._broken is not None:
            raise self._broken

    def _worker(self) -> Worker:
        """The process of this thread."""
        thread = threading.get_ident()
        if thread not in self._mine:
            self._mine[thread] = self._free.pop() if self._free else self._start()
        return self._mine[thread]

    def _start(self) -> Worker:
        with self._lock:
            if self._keeper is None:
                self._keeper = self._servers.keeper(self._torch)
            sock = self._keeper.process_of()
            self._starting += 1
        try:
            worker = Worker(sock, self._late, self._note)
            self._all.append(worker)
        finally:
            self._starting -= 1
        self.guards = {**self._keeper.guards, **worker.guards}
        if not worker.request("load", list(self._cells), self._name):
            raise Wrong(f"{self._name} to be defined", "no such name in your cells", cause="no such name")
        to_begin = seconds_of(worker.process)
        with self._lock:
            self._computed += to_begin  # which is no part of a call
        return worker

    def _note(self, printed: str) -> None:
        self.printed = printed[: 2 * MAX_PRINTED]

    def _run(self, work: Callable[[], Any], seconds: float, loading: bool = False) -> Any:
        """``work()`` within the limits, and what it raises as `Wrong`."""
        seconds = self._share * (seconds if loading else min(seconds, self._whole))
        if self.late:
            seconds *= AFTER_TIME_UP
        allowed = seconds if loading else max(min(seconds, self._left), 0.001)
        in_all = PATIENCE * seconds if loading else max(min(PATIENCE * seconds, self._left_in_all), 0.001)
        self._begin_call(allowed, in_all)
        spent = f"{seconds:g} s" if loading or seconds <= self._left else f"{self._whole:g} s in this check"
        try:
            return work()
        except Wrong:
            raise
        except NotPlain as error:
            raise Wrong(NOT_PLAIN, str(error), cause=str(error)) from None
        except Exception as error:
            raise self._wrong(error, spent) from None
        finally:
            self._end_call()

    def _wrong(self, error: Exception, spent: str) -> Wrong:
        """What an error says, which may have come of another one."""
        told = self._stop or error
        for each in causes(told):
            match each:
                case TimeUp():
                    self.late = True
                    said = f"none after {spent}: a loop that does not end?"
                    return Wrong("an answer in time", said, cause="a call that does not end")
                case TooMuch() | Gone():
                    return Wrong("a result", str(each), cause=str(each))
                case Failed() if each.stub:
                    return NotAnswered()
                case Wrong():
                    return each
        if isinstance(told, Failed):
            return Wrong("a result, no error", told.said, cause=told.cause)
        blamed = blame(told)
        return Wrong("a result, no error", blamed.said, cause=blamed.cause)

    def _begin_call(self, seconds: float, in_all: float = 0.0) -> None:
        self._stop = None
        self._allowed, self._begun = seconds, time.monotonic()
        self._looked = self._idle_since = self._begun
        self._until = self._begun + (in_all or PATIENCE * seconds)
        self._computed = self._computed_then = self._seconds()
        self._delays = 0.0
        self._delays = self._delayed()

    def _end_call(self) -> None:
        self._left -= max(0.0, self._seconds() - self._computed)
        self._left_in_all -= time.monotonic() - self._begun
        if self._stop is not None or any(worker.broken for worker in self._all):
            self.close()
            return
        try:
            for worker in self._all:
                if worker not in self._free:
                    self._until = time.monotonic() + PATIENCE
                    worker.reset()
        except Exception:
            self.close()
            return
        self._free, self._mine = list(self._all), {}

    def _seconds(self) -> float:
        return sum(seconds_of(worker.process) for worker in self._all)

    def _late(self) -> None:
        """Raises `TimeUp` and `TooMuch` when it is time to."""
        now = time.monotonic()
        late = now > self._begun + self._allowed and self._seconds() - self._computed > self._allowed
        if late or (now > self._until and now > self._until + self._delayed()):
            self._stop = self._stop or TimeUp()
        elif self._keeper is not None and now > self._looked + LOOK:
            self._looked = now
            known = [worker.process for worker in self._all]
            held, others = held_and_computed(self._keeper.process, known)
            if held > HELD:
                self._stop = self._stop or TooMuch("more memory than an answer may hold")
            if others > self._allowed or self._idle(now, self._seconds() + others):
                self._stop = self._stop or TimeUp()  # what it has started takes the time of many, or nothing moves
        self._raise_stop()

    def _delayed(self) -> float:
        """Seconds that this call's processes have wanted to run and could not, as others had the machine."""
        return sum(delay_of(worker.process) for worker in self._all) + delay_of(os.getpid()) - self._delays

    def _idle(self, now: float, computed: float) -> bool:
        """Whether nothing has computed for as long as a call may, or wanted to: this is no matter of a busy machine."""
        if self._starting or computed != self._computed_then or not all(waits(worker.process) for worker in self._all):
            self._idle_since, self._computed_then = now, computed
        return now > self._idle_since + max(self._allowed, LOOK)

    def _raise_stop(self) -> None:
        if self._stop is not None:
            raise self._stop


def _check_unchanged(before: tuple[Any, ...], after: Any) -> None:
    """Raise `Wrong` for an argument that is not what it was."""
    for number, (was, now) in enumerate(zip(before, after, strict=False), start=1):
        change = difference(was, now)
        if change is not None:
            raise Wrong(f"argument {number} left as it was: {change.expected}", change.got, change.where)
