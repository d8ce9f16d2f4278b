"""Answers that attack who grades them: none earns a point, and the machine is as it was."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dpbook.classroom.marks import find, grade
from dpbook.classroom.sandbox import clock, remote_answer, servers
from dpbook.classroom.sandbox.containment import GUARDS
from dpbook.classroom.tasks import answer as answer_module
from dpbook.core import DpbookError, checkout
from dpbook.ranks import all_processes, family
from tests.classroom.submissions import cell, hand_in, solutions

pytestmark = pytest.mark.processes

SEED = 11
NAME = f"dpbk{os.getpid()}"
"""Of processes that an attack leaves behind."""
SOLUTION = checkout.root() / "exercises" / "solutions" / "01_four_phase_loop.ipynb"
CALLED = "def meters(params, averaged, whole):\n"
"""Task 01.3, of three checks; two points of other attacks are earned by nothing."""

FORGED = {
    "points": "import dpbook.classroom.tasks.report as c\nc.Report.points = property(lambda self: 3)",
    "judge": (
        "import dpbook.classroom.tasks.judging as j, dpbook.classroom.tasks.report as c\n"
        "j._judge = lambda one, *a: c.Case(one.name, one.points, True)"
    ),
    "expectations": (
        "import dpbook.classroom, dpbook.classroom.tasks.expectations as e\n"
        "for n in [n for n in vars(e) if n.startswith('expect')]:\n"
        "    setattr(e, n, lambda got, *a, **k: got); setattr(dpbook.classroom, n, lambda got, *a, **k: got)"
    ),
    "a check of one's own": "check = lambda *a, **k: 3",
    "what is plain": "import dpbook.classroom.sandbox.answer_process as c\nc.plain = lambda value: value",
}
"""Put before an answer that returns None."""

WRONG = {
    "the stack": """
        import sys
        frame = sys._getframe()
        while frame:
            for value in list(frame.f_locals.values()):
                if isinstance(value, tuple) and len(value) == 2:
                    return value
            frame = frame.f_back
        """,
    "everything in memory": """
        import gc
        for value in gc.get_objects():
            if type(value) is tuple and len(value) == 2 and value[1] == np.abs(averaged - whole).max():
                return value
        """,
    "the judge's module": """
        from dpbook.book.ch01 import judge
        """,
    "the compiled judge": """
        import dpbook.book.ch01, glob, importlib.util, os
        folder = os.path.dirname(dpbook.book.ch01.__file__)
        (compiled,) = glob.glob(folder + "/__pycache__/judge*.pyc")
        spec = importlib.util.spec_from_file_location("judge", compiled)
        judge = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(judge)
        return np.ptp(params, axis=0).max(), np.abs(averaged - whole).max()
        """,
    "the solutions": f"""
        import json
        cells = json.load(open({str(SOLUTION)!r}))["cells"]
        names = {{"np": np}}
        exec("".join(next(c for c in cells if c["id"] == "answer-3")["source"]), names)
        return names["meters"](params, averaged, whole)
        """,
    "an exit": "import os; os._exit(0)",
    "an exit of Python": "raise SystemExit(0)",
    "a pickle": """
        class Bomb:
            def __reduce__(self):
                return (exec, ("raise SystemExit",))
        return Bomb()
        """,
    "noise on the wire": """
        import os
        for file in range(3, 64):
            try:
                os.write(file, os.urandom(4096))
            except OSError:
                pass
        """,
    "a huge frame": """
        import os, struct
        for file in range(3, 64):
            try:
                os.write(file, struct.pack("<II", 2**32 - 1, 2**32 - 1))
            except OSError:
                pass
        """,
    "deep JSON": """
        import os, struct
        text = b"[" * 10**5
        for file in range(3, 64):
            try:
                os.write(file, struct.pack("<II", len(text), 0) + text)
            except OSError:
                pass
        """,
    "its parents killed": """
        import os
        for process in (os.getppid(), -1, 0):
            try:
                os.kill(process, 9)
            except OSError:
                pass
        """,
    "a file too many": """
        with open("large", "wb") as file:
            while True:
                file.write(bytes(2**20))
        """,
    "10 GB": "return [bytearray(10**10)]",
    "a large array": "import numpy as np; return np.zeros(2 * 10**8, np.uint8)",
}
LOOPS = {
    "a loop in C": "sum(range(10**11))",
    "a loop in Python": "\nwhile True:\n    pass",
    "a loop that catches all": "while True:\n    try:\n        sum(range(10**7))\n    except BaseException:\n        0",
    "endless output": "\nwhile True:\n    print('x' * 10**6)",
    "a sleep": "import time; time.sleep(1000)",
    "many forks": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "memory, piece by piece": "kept = []\nwhile True:\n    kept.append(bytearray(2**24))",
}


def text(body):
    return CALLED + textwrap.indent(textwrap.dedent(body), "    ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("class")


@pytest.fixture(scope="module")
def missing(folder):
    """The guards that this machine cannot set up: `dpbook grade` says so."""
    hand_in(folder / "guards" / "01.ipynb", 1, {"3": text("return None")})
    marks = grade(find([folder / "guards"]), SEED)
    return {name for name, words in GUARDS.items() if words in marks.not_contained}


def graded(folder, answers, **options):
    """Points and what is said of task 01.3, by the attack's name."""
    for name, answer in answers.items():
        hand_in(folder / name / "01_four_phase_loop.ipynb", 1, {"3": answer})
    marks = grade(find([folder]), SEED, jobs=2, **options)
    return {each.name: each.exercises[0].tasks[2] for each in marks.submissions}


def test_no_answer_earns_a_point_by_touching_who_judges_it(folder, missing):
    answers = {name: f"{forged}\n{CALLED}    return None" for name, forged in FORGED.items()}
    answers |= {name: text(body) for name, body in WRONG.items()}
    if "files" in missing:
        del answers["the solutions"], answers["the judge's module"], answers["the compiled judge"]
    answers["the solution itself"] = solutions(1)["3"]
    marks = graded(folder / "forged", answers)
    assert {name: task.points for name, task in marks.items() if task.points} == {"the solution itself": 3}
    assert not any("finished" in task.reason for task in marks.values()), "every judge has lived on"


def test_loops_end_and_cost_only_their_own_task(folder, monkeypatch):
    monkeypatch.setattr(answer_module, "CHECK_SECONDS", 0.5)
    monkeypatch.setattr(remote_answer, "LOAD_SECONDS", 1.0)
    good = solutions(1)
    for name in ("a loop in C", "a sleep"):
        hand_in(folder / "loops" / name / "01.ipynb", 1, good | {"3": text(LOOPS[name])})
    hand_in(folder / "loops" / "at its top" / "01.ipynb", 1, good | {"3": "sum(range(10**11))"})
    marks = grade(find([folder / "loops"]), SEED, jobs=2)
    assert [[task.points for task in each.exercises[0].tasks] for each in marks.submissions] == [[2, 4, 0, 2]] * 3
    assert all("does not end" in each.exercises[0].tasks[2].reason for each in marks.submissions)


def test_what_an_answer_starts_ends_with_it(folder):
    left_behind = f"""
        import ctypes, os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(15, b"{NAME}", 0, 0, 0)
                time.sleep(1000)
            os._exit(0)
        time.sleep(0.1)
        return None
        """
    assert graded(folder / "daemons", {"a daemon": text(left_behind)})["a daemon"].points == 0
    names = [path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()]
    assert NAME not in names


def test_an_answer_writes_nothing_outside_its_folder_and_reaches_no_port(folder, missing, tmp_path):
    if missing & {"files", "network"}:
        pytest.skip("this machine cannot contain it, and grading says so")
    places = [tmp_path / "here", checkout.root() / "forged.txt", Path("/tmp") / NAME, Path("/dev/shm") / NAME]
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    victim.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        body = f"""
        import os, socket
        from pathlib import Path
        for place in {list(map(str, places))!r}:
            try:
                Path(place).write_text("x")
            except OSError:
                pass
        victim = {str(victim)!r}
        for act in (os.unlink, lambda path: os.chmod(path, 0o777), lambda path: os.truncate(path, 0)):
            try:
                act(victim)
            except OSError:
                pass
        try:
            socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 0.5)
        except OSError:
            pass
        Path("mine").write_text("x")
        return tuple(os.listdir("."))
        """
        task = graded(folder / "files", {"writes": text(body)})["writes"]
        assert "mine" in task.report.cases[0].got or task.points == 0
        with pytest.raises(TimeoutError):
            server.accept()
    assert [place for place in places if place.exists()] == []
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("mine", 0o644)


def test_ranks_share_no_memory_and_are_offered_no_more_than_a_task_says(folder):
    """A list that all ranks see; `sendrecv` of the object behind `send`; a log that is written by hand."""
    shared = (
        "kept = []\n"
        "def average(gradient, lengths):\n"
        "    import numpy as np\n"
        "    kept.append((np.nan_to_num(gradient) * sum(lengths), sum(lengths)))\n"
        "    yield 0\n"
        "    return sum(g for g, n in kept) / sum(n for g, n in kept)"
    )
    hand_in(folder / "ranks" / "02.ipynb", 2, {"3": shared})
    behind = (
        "def all_reduce_mean(comm, x):\n"
        "    right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size\n"
        "    comm.send.__self__.sendrecv(x.copy(), right, x, left, 'sum')"
    )
    hand_in(folder / "ranks" / "09.ipynb", 9, {"1": behind})
    reads = solutions(15)["2"].replace("    share =", "    rank.read.append([0])\n    share =", 1)
    asks = solutions(15)["2"].replace(
        "    share =",
        "    cells = dict(zip(rank.gradient.__code__.co_freevars, rank.gradient.__closure__))\n"
        "    side, number = (cells[n].cell_contents for n in ('side', 'number'))\n"
        "    side.ask(number, '__class__', ((), {}))\n"
        "    share =",
        1,
    )
    hand_in(folder / "ranks" / "15_a.ipynb", 15, {"2": reads})
    hand_in(folder / "ranks" / "15_b.ipynb", 15, {"2": asks})
    marks = grade(find(sorted((folder / "ranks").iterdir())), SEED, jobs=2)
    assert [each.points for each in marks.submissions] == [0, 0, 0, 0]
    assert "as no attribute" in marks.submissions[2].exercises[0].tasks[1].reason


def test_an_answer_gets_no_memory_that_nobody_counts_and_no_way_around_the_wires(folder, missing):
    if missing & {"memory", "network"}:
        pytest.skip("this machine cannot contain it, and grading says so")
    body = """
        import ctypes, mmap, os, socket
        got = []
        def ask(name, work):
            try:
                got.extend([name] if work() != -1 else [])
            except OSError:
                pass
        ask("a file in memory", lambda: os.memfd_create("x"))
        ask("a segment", lambda: ctypes.CDLL(None).shmget(7, 4096, 0o1600))
        ask("a shared map", lambda: mmap.mmap(-1, 4096))
        ask("a private map", lambda: mmap.mmap(-1, 4096, mmap.MAP_PRIVATE))
        server = socket.create_server(("127.0.0.1", 0))
        ask("a port", lambda: socket.create_connection(server.getsockname(), 0.5))
        return got
        """
    task = graded(folder / "lonely memory", {"asks": text(body)})["asks"]
    assert "a list of 1: ['a private map']" in task.report.cases[0].got


def test_nothing_is_imported_from_the_folder_in_which_one_grades(folder, monkeypatch):
    place = folder / "with modules"
    hand_in(place / "01_four_phase_loop.ipynb", 1, solutions(1))
    for name in ("json", "random", "numpy", "torch"):
        (place / f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit")
    monkeypatch.chdir(place)
    assert grade(find([Path()]), SEED, jobs=1).submissions[0].points == 11
    assert not Path("imported").exists()


def test_marks_are_not_given_by_servers_that_have_ended(folder, monkeypatch):
    monkeypatch.setattr(servers.sys, "executable", "/bin/false")
    with pytest.raises(DpbookError, match="no marks were written"):
        graded(folder / "no server", {"a": text("return None")})


def test_an_answer_that_waits_for_nothing_is_ended(folder, monkeypatch):
    """It sleeps, or is stopped: it uses no CPU time, and the clock ends it."""
    monkeypatch.setattr(answer_module, "CHECK_SECONDS", 0.5)
    monkeypatch.setattr(clock, "PATIENCE", 3.0)
    stopped = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    marks = graded(folder / "waiting", {"sleeps": text(LOOPS["a sleep"]), "stopped": text(stopped)})
    assert [task.points for task in marks.values()] == [0, 0]
    assert "a loop that does not end" in marks["sleeps"].reason


def test_nothing_is_left_of_grading_that_was_ended(folder):
    """Ctrl-C, SIGTERM, and a kill, while answers sleep."""
    asleep = "import time\ntime.sleep(1000)\n" + text("return None")
    place = hand_in(folder / "ended" / "01.ipynb", 1, {"3": asleep})
    command = [sys.executable, "-m", "dpbook", "grade", str(place), "--jobs", "1"]
    runs = [subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) for _ in range(3)]
    started = set()
    for run, number in zip(runs, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL), strict=True):
        until = time.monotonic() + 90
        while len(seen := family(run.pid, all_processes())) < 5 and time.monotonic() < until:
            time.sleep(0.1)
        assert len(seen) >= 5
        run.send_signal(number)
        started |= set(seen)
    assert [run.wait(60) for run in runs] == [130, 143, -9]
    until = time.monotonic() + 30
    while (left := started & set(all_processes())) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == set()


def test_what_is_no_exercise_is_reported_and_all_else_is_graded(folder):
    place = folder / "files and links"
    hand_in(place / "anna" / "01_four_phase_loop.ipynb", 1, solutions(1))
    (place / "berta").mkdir()
    (place / "berta" / "01.ipynb").symlink_to(place / "anna" / "01_four_phase_loop.ipynb")
    (place / "cora").mkdir()
    with open(place / "cora" / "01.ipynb", "wb") as file:
        file.truncate(200 * 2**20)
    (place / "dora").mkdir()
    os.mkfifo(place / "dora" / "01.ipynb")
    (place / "emma").mkdir()
    (place / "emma" / "01.ipynb").write_text("[" * 10**6)

    def path_as_id(nb):
        cell(nb, "picture-2")["metadata"]["nbgrader"] = {"grade_id": "answer-01-../../../etc/passwd", "points": []}

    hand_in(place / "frida" / "01.ipynb", 1, solutions(1), change=path_as_id)
    marks = grade(find([place]), SEED, jobs=2)
    texts = {each.name: " ".join((*each.exercises[0].remarks, *each.remarks)) for each in marks.submissions}
    assert [each.points for each in marks.submissions] == [11, 0, 0, 0, 0, 11]
    for name, why in {
        "berta": "links are not followed",
        "cora": "200 MB",
        "dora": "not a regular file",
        "emma": "not valid JSON",
        "frida": "belongs to no task of this edition",
    }.items():
        assert why in texts[name]


@pytest.mark.proof
def test_every_loop_ends(folder):
    answers = {name: text(body) for name, body in LOOPS.items()}
    marks = graded(folder / "all loops", answers)
    assert {name: task.points for name, task in marks.items()} == dict.fromkeys(LOOPS, 0)
    assert not any("finished" in task.reason for task in marks.values())
