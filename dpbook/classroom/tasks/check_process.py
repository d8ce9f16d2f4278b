"""The process in which an answer from a notebook is judged. `notebook_check` starts one for each check.

Answer and judge share it: a learner's own check need not be safe from the learner. Marks need to be, and have
`dpbook.classroom.sandbox`.
"""

import linecache
import os
import pickle
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from dpbook.classroom.tasks.answer import LocalAnswer
from dpbook.classroom.tasks.call_limit import PRINTED, History, ProcessLimit
from dpbook.classroom.tasks.expectations import begin_course
from dpbook.classroom.tasks.judging import cases_of
from dpbook.classroom.tasks.write_your_own import refuse
from dpbook.core import DpbookError

SOCKET = "socket"
"""File in the folder of the process: the socket of whoever started it."""


class Request(NamedTuple):
    """Checks to run, in the order of the task.

    ``pickled`` holds the task, the answer and the seed, pickled by value; ``names`` are the checks to run; ``sources``
    is the text of the notebook's cells by file name, for `linecache`; ``write_your_own`` is what the answer cannot
    call; ``environment`` are the notebook's variables.
    """

    pickled: bytes
    names: Sequence[str]
    history: History
    folder: str
    path: Sequence[str]
    write_your_own: Sequence[str]
    environment: Mapping[str, str]
    sources: Mapping[str, Any]
    course: int | None


def main(folder: Path) -> int:
    """Run the checks of one request; send each case when it is there, and in the end the output.

    An answer that cannot be rebuilt here is sent as a `DpbookError`.
    """
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(folder / SOCKET))
        connection = Connection(caller.detach())
    os.register_at_fork(after_in_child=connection.close)  # a process that an answer forks has nothing to report
    with connection:
        try:
            request: Request = connection.recv()
        except EOFError:  # whoever started it needs it no longer
            return 0
        os.chdir(request.folder)
        os.environ.update(request.environment)
        sys.path[:] = request.path
        linecache.cache.update(request.sources)
        begin_course(request.course)
        refuse(request.write_your_own)  # before the answer is rebuilt, which then finds what refuses
        try:
            task, answered, seed = pickle.loads(request.pickled)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            connection.send(DpbookError(f"the answer cannot be unpickled in the process of its check ({cause})"))
            return 1
        limit = ProcessLimit(folder, task.answer, request.history)
        answer = LocalAnswer(answered, limit, os.open(folder / PRINTED, os.O_WRONLY | os.O_CREAT, 0o600))
        for name in request.names:
            limit.check = name
            (case,) = cases_of(task, answer, seed, (name,))
            connection.send((case, request.history.longest))
        connection.send(answer.printed)
    return 0
