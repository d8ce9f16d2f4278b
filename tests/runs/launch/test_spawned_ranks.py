"""Does a script that starts its ranks with torch.multiprocessing.spawn train once in the ranks of a launch?"""

import pytest
import torch.multiprocessing as multiprocessing

from dpbook.app import main
from dpbook.ranks import held_port
from dpbook.runs.launch.spawned_ranks import FinishedRanks, call_spawned_functions

SCRIPT = """import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pathlib import Path

def add(rank, world, name, init, port):
    if port:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world)
    total = torch.tensor(10**rank)
    dist.all_reduce(total)
    with open("sums", "a") as file:
        file.write(f"{name} {total}\\n")
    dist.destroy_process_group()

if __name__ == "__main__":
    first, second = sys.argv[1:]
    mp.spawn(add, args=(2, "own", None, first), nprocs=2, join=True)
    assert mp.spawn(add, (2, "tcp", f"tcp://127.0.0.1:{second}", ""), 2, join=False).join()
    mp.spawn(add, args=(2, "the launch's", None, ""), nprocs=2)
"""


@pytest.mark.processes
def test_the_function_runs_once_in_each_rank_whoever_serves_the_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spawns.py").write_text(SCRIPT)
    with held_port() as first, held_port() as second:
        assert main(["launch", "--nproc", "2", "spawns.py", str(first), str(second)]) == 0
    sums = (tmp_path / "sums").read_text().splitlines()
    assert sums == [f"{name} 11" for name in ("own", "tcp", "the launch's") for _ in range(2)]


@pytest.fixture
def started(monkeypatch):
    """The calls that reach torch's own function, with two ranks on the node, of which this is number 1."""
    calls = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(multiprocessing, "spawn", lambda *args, **options: calls.append((args, options)))
    call_spawned_functions()
    return calls


def test_another_number_of_processes_is_started_as_before(started):
    assert multiprocessing.spawn(print, ("a",), nprocs=8, start_method="fork") is None
    assert started == [((print, ("a",), 8, True), {"start_method": "fork"})]


def test_a_call_that_does_not_wait_has_nothing_to_wait_for(started):
    ranks = []
    finished = multiprocessing.spawn(ranks.append, nprocs=2, join=False)
    assert isinstance(finished, FinishedRanks)
    assert finished.join(3.0)
    assert (ranks, list(finished.processes), started) == ([1], [], [])
