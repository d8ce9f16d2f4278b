"""With --spawns: are the processes that a script starts the ranks of the launch, and does the script run once?"""

import pytest

from dpbook.app import main
from dpbook.ranks import held_port

pytestmark = pytest.mark.processes
HEAD = """import multiprocessing, os, sys, threading
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import init_process_group

def note(text):
    with open("notes", "a") as file:
        file.write(text + "\\n")

def add(rank, world, name, init=None):
    init_process_group("gloo", init_method=init, rank=rank, world_size=world)
    total = torch.tensor(10 ** dist.get_rank())
    dist.all_reduce(total)
    note(f"{name} {total}")
    dist.destroy_process_group()
"""
STARTS = """
def put(rank, queue, barrier):
    os.environ["RANK"] = str(rank)
    add(-1, -1, "a loop")
    barrier.wait()
    queue.put(rank)

if __name__ == "__main__":
    note("begins")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", sys.argv[1]
    mp.spawn(add, args=(2, "own"), nprocs=2, join=True)
    fork = mp.get_context("fork")
    context = mp.start_processes(add, (2, "tcp", f"tcp://127.0.0.1:{sys.argv[2]}"), 2, join=False, start_method="fork")
    while not context.join():
        pass
    queue, barrier = fork.Queue(), fork.Barrier(2)
    os.environ["WORLD_SIZE"] = "2"
    ranks = [fork.Process(target=put, args=(rank, queue, barrier)) for rank in range(2)]
    for process in ranks:
        process.start()
    note(f"{sorted(queue.get() for _ in ranks)}")
    for process in ranks:
        process.join()
    note("ends")
"""


def launched(folder, monkeypatch, text, *arguments, ranks=2, spawns=("--spawns",)):
    """Launch a script that begins with `HEAD`; return the exit status and what it has noted."""
    monkeypatch.chdir(folder)
    (folder / "script.py").write_text(HEAD + text)
    status = main(["launch", "--nproc", str(ranks), *spawns, "script.py", *map(str, arguments)])
    notes = folder / "notes"
    return status, notes.read_text().splitlines() if notes.exists() else []


def test_each_process_is_one_rank_whoever_starts_it_and_serves_the_store(tmp_path, monkeypatch):
    with held_port() as first, held_port() as second:
        status, notes = launched(tmp_path, monkeypatch, STARTS, first, second)
    assert status == 0
    assert notes == [
        "begins",
        *(f"{name} 11" for name in ("own", "tcp", "a loop") for _ in range(2)), "[0, 1]", "ends",
    ]  # fmt: skip


OTHERS = """
class Rank(mp.get_context("fork").Process):
    def run(self):
        add(1, 2, "a subclass", sys.argv[1])

def prepare(number):
    note(f"prepared {number}")

def save():
    note("a thread of the rank")

def rank_with_thread(rank):
    assert not any(name.startswith(("TORCHELASTIC", "LOCAL_RANK", "WORLD_SIZE")) for name in os.environ)
    add(rank, 2, "started in a thread", sys.argv[2])
    if rank:
        threading.Timer(0.2, save).start()

if __name__ == "__main__":
    with mp.get_context("fork").Pool(1) as pool:
        pool.map(prepare, [7])
    ranks = [mp.get_context("fork").Process(target=rank_with_thread, args=(rank,)) for rank in range(2)]
    starter = threading.Thread(target=lambda: [process.start() for process in ranks])
    starter.start()
    for process in [starter, *ranks]:
        process.join()
    note(f"{[process.exitcode for process in ranks]}")
    other = Rank()
    other.start()
    add(0, 2, "the script itself", sys.argv[1])
    other.join()
"""


@pytest.mark.proof
def test_every_process_that_joins_is_a_rank_and_ends_as_without_a_launch(tmp_path, monkeypatch):
    addresses = [f"file://{tmp_path}/{name}" for name in ("first", "second")]
    status, notes = launched(tmp_path, monkeypatch, OTHERS, *addresses)
    assert status == 0
    assert notes[0] == "prepared 7"
    assert notes[1:5] == ["started in a thread 11"] * 2 + ["a thread of the rank", "[0, 0]"]
    assert sorted(notes[5:]) == ["a subclass 11", "the script itself 11"]


HANDLERS = """
import atexit, signal, time
from concurrent.futures import ThreadPoolExecutor

if __name__ == "__mp_main__":
    atexit.register(note, "an exit handler")

def stop(*_):
    note("a handler of SIGTERM")
    sys.exit()

def serve(rank, address):
    signal.signal(signal.SIGTERM, stop)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(add, rank, 2, "in a thread", address).result()
    signal.pause()

if __name__ == "__main__":
    mp.spawn(add, (2, "spawned", sys.argv[1]), 2)
    ranks = [mp.get_context("fork").Process(target=serve, args=(rank, sys.argv[2])) for rank in range(2)]
    for process in ranks:
        process.start()
    while open("notes").read().count("in a thread") < 2:
        time.sleep(0.05)
    for process in ranks:
        process.terminate()
        process.join()
    note(f"{[process.exitcode for process in ranks]}")
"""


@pytest.mark.proof
def test_handlers_of_the_script_run_and_a_rank_may_join_in_a_thread(tmp_path, monkeypatch):
    addresses = [f"file://{tmp_path}/{name}" for name in ("first", "second")]
    status, notes = launched(tmp_path, monkeypatch, HANDLERS, *addresses)
    assert status == 0
    assert sorted(notes[:4]) == ["an exit handler"] * 2 + ["spawned 11"] * 2
    assert notes[4:] == ["in a thread 11"] * 2 + ["a handler of SIGTERM"] * 2 + ["[0, 0]"]


LOADS = """
from torch.utils.data import DataLoader

def load(rank, address=None):
    init_process_group("gloo", init_method=address, rank=rank, world_size=2 if address else -1)
    opened = []
    for epoch in range(6):
        list(DataLoader(range(8), num_workers=2))
        opened.append(len(os.listdir("/proc/self/fd")))
    note("closed" if opened[-1] < opened[0] + 10 else f"open files: {opened}")

if __name__ == "__main__":
    if len(sys.argv) > 1:
        mp.start_processes(load, (sys.argv[1],), 2, start_method="fork")
    else:
        load(-1)
"""


@pytest.mark.proof
@pytest.mark.parametrize("spawns", [True, False])
def test_the_workers_of_a_rank_leave_no_file_open(tmp_path, monkeypatch, spawns):
    address = [f"file://{tmp_path}/store"] if spawns else []
    status, notes = launched(tmp_path, monkeypatch, LOADS, *address, spawns=("--spawns",) if spawns else ())
    assert (status, notes) == (0, ["closed"] * 2)


FAILS = """
def fail(rank, world):
    add(rank, world, "before")
    if rank == 1:
        raise ValueError("as said")

if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", sys.argv[1]
    ranks = [mp.get_context("spawn").Process(target=fail, args=(rank, 2)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
"""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "rank 1 failed first: ValueError: as said"),
        (
            {"ranks": 3},
            "InvalidArgument: --nproc must be the number of ranks that the script starts: 2, got 3",
        ),
        (
            {"spawns": ()},
            "the script starts its ranks itself, and torchrun has started others: add --spawns",
        ),
    ],
)
def test_an_error_that_the_script_does_not_look_at_is_reported(tmp_path, monkeypatch, capfd, options, line):
    with held_port() as port:
        status, _ = launched(tmp_path, monkeypatch, FAILS, port, **options)
    assert status == 1
    assert line in capfd.readouterr().err


OUTSIDE = """
def fail(rank, when):
    if when == "early" and rank == 1:
        raise ValueError("as said")
    add(rank, 2, "rank", sys.argv[2])

if __name__ == "__main__":
    ranks = [mp.get_context("fork").Process(target=fail, args=(rank, sys.argv[1])) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    raise KeyError("afterwards")
"""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("when", "line"),
    [
        ("early", "a process that the script started failed before it joined the process group: ValueError: as said"),
        ("late", "the script failed in the process that starts its ranks: KeyError: 'afterwards'"),
    ],
)
def test_an_error_outside_of_the_ranks_is_none_of_a_rank(tmp_path, monkeypatch, capfd, when, line):
    options = ("--spawns", "--start-timeout", "12")
    status, _ = launched(tmp_path, monkeypatch, OUTSIDE, when, f"file://{tmp_path}/store", spawns=options)
    assert status == 1
    assert line in capfd.readouterr().err


ENDS = """
import signal, time

def work(rank, fault):
    init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
    dist.all_reduce(torch.ones(3))
    if fault == f"rank {rank} is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and fault == "waits":
        time.sleep(1000)
    dist.all_reduce(torch.ones(5))

if __name__ == "__main__":
    if sys.argv[1].startswith("rank 0"):  # which this process is
        mp.get_context("fork").Process(target=work, args=(1, sys.argv[1])).start()
        work(0, sys.argv[1])
    mp.spawn(work, (sys.argv[1],), 2)
"""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("rank 1 is killed", 1, "rank 1 died: killed by SIGKILL"),
        ("rank 0 is killed", 137, "rank 0 died: killed by SIGKILL"),
        ("waits", 1, "rank 1 never joined collective 2 (all_reduce of 5 × float32): it was at script.py:26 in work"),
    ],
)
def test_the_rank_at_fault_is_named_as_under_torchrun(tmp_path, monkeypatch, capfd, fault, status, line):
    options = ("--spawns", "--hang-timeout", "8")
    ended, _ = launched(tmp_path, monkeypatch, ENDS, fault, f"file://{tmp_path}/store", spawns=options)
    assert ended == status
    assert line in capfd.readouterr().err


EARLY = """
from concurrent.futures import ProcessPoolExecutor, wait
from datetime import timedelta
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train(rank, divisor, address):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for step in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= divisor
        optimizer.step()
    open("trained", "w").close()

if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        wait([pool.submit(train, rank, int(sys.argv[1]), sys.argv[2]) for rank in range(2)])
    open("trained").close()
"""


@pytest.mark.proof
@pytest.mark.parametrize(("divisor", "verdict"), [(2, "PASS"), (1, "FAIL")])
def test_an_audit_sees_an_optimizer_created_before_and_ends_a_script_that_waits_for_its_ranks(
    tmp_path, monkeypatch, capsys, divisor, verdict
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(HEAD + EARLY)
    status = main(["audit", "--nproc", "2", "--spawns", "script.py", str(divisor), f"file://{tmp_path}/store"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "is the big batch's" in line]
    assert [line.split()[0] for line in lines] == [verdict]
    assert status == (verdict == "FAIL")
