"""An answer that runs in processes of its own, one for each rank, behind the same door as one of this process.

What a check hands to `call` as ``through`` runs here, with what stands for the learner's function: whatever that is
given which acts (a rank's end of the wires, a gradient's function) stays here too, and is called from there. So what
is judged is what this side saw. Only what it gives to ``hosted`` runs in the answer's process.
"""

import copy
import math
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dpbook.classroom.sandbox.clock import HURRIED_PATIENCE, PATIENCE, Clock, MemoryLimitExceeded, TimeLimitExceeded
from dpbook.classroom.sandbox.judge_side import Failed, ProcessEnded, RemoteGenerator, Worker
from dpbook.classroom.sandbox.servers import AnswerNamespace, Kind, Servers
from dpbook.classroom.tasks.answer import (
    MAX_PRINTED,
    NOT_PLAIN,
    Answer,
    NotAnswered,
    Through,
    Wrong,
    blame,
    causes,
    check_unchanged,
)
from dpbook.classroom.tasks.call_limit import AFTER_TIMEOUT
from dpbook.classroom.tasks.plain_data import NotPlain, plain

LOAD_SECONDS = 4.0
HURRIED = {False: 1 / 16, True: 1 / 8}
"""Share of the time limit in a first attempt, without and with torch, whose first calls take long."""
HURRIED_MOST = 2.0
"""Longest time limit of a first attempt, in seconds, for tasks with an unusually long limit."""
Cells = Sequence[tuple[str, str]]


class RemoteAnswer(Answer):
    """The answer called ``name`` that ``cells`` leave behind, in processes of ``servers``. Close it to end them.

    It cannot call what ``write_your_own`` names.

    It is ``late`` once a call has not ended in time, of which there is less for one that is ``hurried``. After an alarm
    of the judge's, or whatever else is no `Exception`, it is at its end.
    """

    ranks_are_processes = True

    def __init__(
        self,
        servers: Servers,
        cells: Cells,
        name: str,
        *,
        torch: bool = False,
        hurried: bool = False,
        write_your_own: Sequence[str] = (),
    ) -> None:
        self._write_your_own = list(write_your_own)
        self._servers, self._cells, self._name, self._torch = servers, cells, name, torch
        self._share, self._most = (HURRIED[torch], HURRIED_MOST) if hurried else (1.0, math.inf)
        self.late = False
        self.guards: dict[str, bool] = {}
        self.beside = False
        self._keepers: dict[Kind, AnswerNamespace] = {}
        self._other: Worker | None = None
        self._free: list[Worker] = []
        self._all: list[Worker] = []
        self._mine: dict[int, Worker] = {}
        self._generators: list[tuple[Worker, RemoteGenerator, tuple[Any, ...]]] = []
        self._loaded: str | Wrong | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._clock = Clock(HURRIED_PATIENCE if hurried else PATIENCE)
        self._clock.begin_call(LOAD_SECONDS, loading=True)
        super().__init__(self._clock, "")

    def renew(self) -> None:
        """Run later calls in new processes."""
        self.close()

    def close(self) -> None:
        """End the answer's processes."""
        for worker in self._all:
            worker.close()
        self._all, self._free, self._mine, self._other = [], [], {}, None
        self._clock.forget()
        for keeper in self._keepers.values():
            keeper.close()
        self._keepers = {}

    def _value(self) -> Any:
        return self._worker().request("value")

    def _call(self, args: tuple[Any, ...], through: Through | None, unchanged: bool, seconds: float) -> Any:
        given = _copied(args)
        if through is None:
            return self._run(lambda: self._one(given, live=False, unchanged=unchanged), seconds)
        other: Through = getattr(through, "apart", through)

        def function(*own: Any) -> Any:
            return self._one(own, live=True, unchanged=unchanged)

        def called() -> Any:
            self._generators = []
            result = plain(other(function, *given))
            for worker, generator, before in self._generators:
                check_unchanged(before, worker.request("arguments", generator))
            return result

        function.__name__ = function.__qualname__ = self._name
        function.hosted = self._hosted  # type: ignore[attr-defined]
        function.each = self._each  # type: ignore[attr-defined]
        return self._run(called, seconds)

    def _one(self, args: tuple[Any, ...], live: bool, unchanged: bool) -> Any:
        """Call the learner's function once, in the process of this thread."""
        worker = self._worker()
        before = _copied(args) if unchanged else ()
        result, after = worker.request("call", None, args, live, unchanged)
        if worker.answered_for_objects:  # it belongs to these now: another call of this thread gets another process
            self._mine.pop(threading.get_ident(), None)
        if unchanged and isinstance(result, RemoteGenerator):
            self._generators.append((worker, result, before))
        elif unchanged:
            check_unchanged(before, after)
        return result

    def _hosted(self, harness: Callable[..., Any], *args: Any) -> Any:
        """Return ``harness(answer, *args)``, called in the process of this thread, which could say something else."""
        self.beside = True
        return self._worker().request("beside", harness, args)

    def _each(self, calls: Sequence[tuple[Any, ...]], other_hashes: bool) -> Any:
        """Return the results of calls in the process of this thread, or in one whose strings have other hashes."""
        if not other_hashes:
            return self._worker().request("each", list(calls))
        self._other = self._other or self._start(Kind.OTHER_HASHES)
        return self._other.request("each", list(calls))

    def _kind(self) -> str:
        """Run the cells, once. Raises what that came to, in every check."""
        if self._loaded is None:
            try:
                self._loaded = self._run(lambda: self._worker().request("kind"), LOAD_SECONDS, loading=True)
            except Wrong as wrong:
                self._loaded = wrong
        if isinstance(self._loaded, Wrong):
            raise self._loaded
        return self._loaded or ""

    def _worker(self) -> Worker:
        """Return the process of this thread."""
        thread = threading.get_ident()
        if thread not in self._mine:
            self._mine[thread] = self._free.pop() if self._free else self._start()
        return self._mine[thread]

    def _start(self, kind: Kind | None = None) -> Worker:
        kind = kind or (Kind.TORCH if self._torch else Kind.NUMPY)
        with self._lock:
            if self._ended:
                raise ProcessEnded("the check has already ended")
            if kind not in self._keepers:
                self._keepers[kind] = self._servers.keeper(kind)
                self._clock.keepers.append(self._keepers[kind].process)
                if kind is Kind.OTHER_HASHES:  # its process has another number, too, than the first of the answer
                    self._keepers[kind].process_of().close()
            keeper = self._keepers[kind]
            sock = keeper.process_of()
        worker = Worker(sock, self._clock, self._note)
        self._all.append(worker)
        self._clock.known.append(worker.process)
        self.guards = {**keeper.guards, **worker.guards}
        if not worker.request("load", list(self._cells), self._name, self._write_your_own):
            raise Wrong(f"{self._name} to be defined", "this name is not defined in your cells", cause="no such name")
        with self._lock:
            self._clock.has_begun(worker.process)
        return worker

    def _note(self, printed: str) -> None:
        self._printed = printed[: 2 * MAX_PRINTED]

    def _run(self, work: Callable[[], Any], seconds: float, loading: bool = False) -> Any:
        """Return ``work()``, called within the limits; what it raises becomes `Wrong`."""
        seconds = min(self._share * (seconds if loading else min(seconds, self._clock.whole)), self._most)
        self._clock.begin_call(AFTER_TIMEOUT * seconds if self.late else seconds, loading)
        try:
            return work()
        except Wrong:
            raise
        except NotPlain as error:
            raise Wrong(NOT_PLAIN, str(error), cause=str(error)) from None
        except Exception as error:
            raise self._wrong(error) from None
        except BaseException:  # threads of the call serve these processes no longer, and start no others
            with self._lock:
                self._ended = True
            self.close()
            raise
        finally:
            self._end_call()

    def _wrong(self, error: Exception) -> Wrong:
        """Return the error as `Wrong`; the cause may be another error behind it."""
        cause_of_end = self._clock.stop or error
        for each in causes(cause_of_end):
            match each:
                case TimeLimitExceeded():
                    self.late = True
                    message = f"none after {self._clock.spent}: a loop that does not end?"
                    return Wrong("an answer in time", message, cause="a call that does not end")
                case MemoryLimitExceeded() | ProcessEnded():
                    return Wrong("a result", str(each), cause=str(each))
                case Failed() if each.stub:
                    return NotAnswered()
                case Wrong():
                    return each
        blamed = cause_of_end if isinstance(cause_of_end, Failed) else blame(cause_of_end)
        return Wrong("a result, no error", blamed.message, cause=blamed.cause)

    def _end_call(self) -> None:
        self._clock.end_call()
        if self._clock.stop is not None or any(worker.broken for worker in self._all):
            self.close()
            return
        try:
            for worker in self._all:
                if worker not in self._free:
                    self._clock.give_more()
                    worker.reset()
        except Exception:
            self.close()
            return
        self._free, self._mine = [worker for worker in self._all if worker is not self._other], {}


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """In less time than `copy.deepcopy`, where there is no function that pickle does not find."""
    try:
        copied: tuple[Any, ...] = pickle.loads(pickle.dumps(args, protocol=5))
    except (pickle.PicklingError, AttributeError, TypeError):
        copied = copy.deepcopy(args)
    return copied
