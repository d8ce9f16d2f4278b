"""Are the processes that a script starts itself the ranks of a launch, and does the script run on once?"""

import pytest

from dpbook.app import main
from dpbook.ranks import held_port

pytestmark = pytest.mark.processes
HEAD = """import multiprocessing, os, sys
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


def launched(folder, monkeypatch, text, *arguments, ranks=2):
    """Launch a script that begins with `HEAD`; return the exit status and what it has noted."""
    monkeypatch.chdir(folder)
    (folder / "script.py").write_text(HEAD + text)
    status = main(["launch", "--nproc", str(ranks), "script.py", *map(str, arguments)])
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
def prepare(number):
    note(f"prepared {number}")

if __name__ == "__main__":
    with mp.get_context("fork").Pool(1) as pool:
        pool.map(prepare, [7])
    add(int(os.environ["RANK"]), 2, "launched")
"""


@pytest.mark.proof
def test_processes_for_something_else_are_started_by_every_rank(tmp_path, monkeypatch):
    status, notes = launched(tmp_path, monkeypatch, OTHERS)
    assert status == 0
    assert notes == ["prepared 7"] * 2 + ["launched 11"] * 2


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
    ("ranks", "line"),
    [
        (2, "rank 1 failed first: ValueError: as said"),
        (3, "InvalidArgument: --nproc must be the number of ranks that the script starts: 2, got 3"),
    ],
)
def test_an_error_that_the_script_does_not_look_at_is_reported(tmp_path, monkeypatch, capfd, ranks, line):
    with held_port() as port:
        status, _ = launched(tmp_path, monkeypatch, FAILS, port, ranks=ranks)
    assert status == 1
    assert line in capfd.readouterr().err
