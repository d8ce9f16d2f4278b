"""The server of `servers.Servers`: it has loaded the modules that answers use, and forks the processes of answers.

It forks a keeper for each answer, which is the first process of a namespace where the kernel has such, and the keeper
forks the answer's processes, one for each rank. With the keeper all of them end.

    python -m dpbook.classroom.sandbox.server SOCKET MEMORY MODULE…
"""

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dpbook.classroom.sandbox import answer_process, containment
from dpbook.classroom.sandbox.servers import end_family
from dpbook.classroom.tasks.load_tasks import list_tasks
from dpbook.core import PACKAGE, checkout
from dpbook.core.fork_server import preload

DISK = 64 * containment.MIB
PROCESSES = {False: 32, True: 128}
"""Most processes and threads of an answer, without and with torch: more of them would slow down the judge."""
SECONDS = 600
"""Most CPU seconds of a process in all; the limit of one call is lower, see `answer`."""
DEVICES = [Path("/dev") / name for name in ("null", "random", "urandom")]
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/hosts", "/sys")
HIDDEN = frozenset({"judge.py", "__pycache__"})
"""Names of files and folders of the book that no answer may read."""


class Rules(NamedTuple):
    """Rules for all processes of an answer: user, bytes, a namespace of processes, what else its keeper has."""

    user: int | None
    memory: int
    processes: bool
    guards: dict[str, bool]


def readable() -> list[Path]:
    """Return the paths that answers may read: Python, its packages, and all of dpbook except the judges of tasks.

    A judge also lies compiled in its chapter's ``__pycache__``, so no such folder can be read. Nor can the solutions,
    which a checkout has: in the stead of a folder that contains the checkout stands all else that it contains.
    """
    hidden = checkout.root() if checkout.is_checkout() else PACKAGE.resolve()
    path = (each for each in sys.path if each and Path(each).is_dir())
    places = [Path(each) for each in (*_SYSTEM, sys.base_prefix, sys.prefix, *path)]
    found, opened = set[Path](), {hidden}
    while places:
        place = places.pop().resolve()
        if not hidden.is_relative_to(place):
            found.add(place)
        elif place not in opened:
            opened.add(place)
            places += place.iterdir()
    book = PACKAGE / "book"
    for folder in (PACKAGE, *book.glob("sim"), *book.glob("ch*")):
        found |= {item for item in folder.iterdir() if item.name not in HIDDEN and item != book}
    return [*found, book / "__init__.py"]


def serve(control: socket.socket, memory: int) -> None:
    """Fork a keeper for each socket that arrives, until the other end closes the connection."""
    containment.adopt_orphans()
    apart = containment.leave_network()
    if apart:  # else it would be done to everybody
        if "torch" in sys.modules:  # whose groups use it; elsewhere ranks would have a way around their wires
            containment.raise_loopback()
        containment.open_way([Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), PACKAGE.resolve()])
    paths = readable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        word, files, _, _ = socket.recv_fds(control, 4096, 1)
        if not word:
            return
        request = json.loads(word)
        with contextlib.suppress(OSError):  # no more processes: whoever requested one sees that nobody is there
            if os.fork() == 0:
                try:
                    control.close()
                    with socket.socket(fileno=files[0]) as sock:
                        _begin(sock, request, paths, memory, apart)
                finally:  # whoever requested it may be gone: this is no second server
                    os._exit(0)
        os.close(files[0])


def _begin(sock: socket.socket, request: dict[str, Any], paths: list[Path], memory: int, network: bool) -> None:
    """Fork the keeper and send its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.sched_setaffinity(0, request["cores"])
    os.setsid()
    processes = containment.leave_processes()
    keeper = os.fork()
    if keeper == 0:
        folder = Path(request["folder"])
        disk = containment.small_disk(folder, DISK)
        most = memory + containment.mapped()
        files = containment.confine(paths, [folder, *DEVICES])
        rules = Rules(request["user"] if os.getuid() == 0 else None, most, processes, {"disk": disk, "files": files})
        _keep(sock, folder, rules)
    reply = {"keeper": keeper, "processes": processes, "network": network}
    sock.send(json.dumps(reply).encode())


def _keep(sock: socket.socket, folder: Path, rules: Rules) -> NoReturn:
    """Fork a process for each socket that arrives; end them all when the other end closes the connection."""
    containment.adopt_orphans()
    signal.signal(signal.SIGCHLD, _reap)
    number = 0
    while True:
        word, files, _, _ = socket.recv_fds(sock, 16, 1)
        if not word:
            break
        number += 1
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                sock.close()
                _answer(files[0], folder / str(number), rules)
        for file in files:
            os.close(file)
    if not rules.processes:
        end_family(os.getpid())
    os._exit(0)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(file: int, folder: Path, rules: Rules) -> NoReturn:
    """Become the process of an answer."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        containment.die_with_parent()
        folder.mkdir()
        user = rules.user
        if user is not None:
            with contextlib.suppress(OSError):
                os.chown(folder, user, user)
        os.chdir(folder)
        os.environ.update(HOME=str(folder), TMPDIR=str(folder))
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.closerange(3, file)
        os.closerange(file + 1, 256)
        counted = user is not None or rules.processes  # else it would be all of whoever grades
        containment.limit(rules.memory, SECONDS, PROCESSES["torch" in sys.modules] if counted else None)
        # Of what the keeper may read, and a folder of its own.
        alone = containment.confine([Path("/")], [folder, *DEVICES])
        guards = {**rules.guards, "files": rules.guards["files"] and alone}
        guards["user"] = user is not None and containment.become(user)
        containment.drop_privileges()
        guards["memory"] = containment.refuse_lonely_memory()
        containment.die_with_parent()  # anew, for whoever has another user
        with socket.socket(fileno=file) as sock:
            answer_process.serve(sock, guards)
    except BaseException:
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    preload(sys.argv[3:])
    list_tasks()  # which the first cell of an exercise asks for
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
