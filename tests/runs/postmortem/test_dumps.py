"""Are anybody's Flight Recorder dumps read without running them, and is who waits for whom said of them?"""

import json
import os
import pickle
import time

import pytest

from dpbook.app.command_line import main
from dpbook.core import InvalidArgument
from dpbook.ranks import start
from dpbook.runs.postmortem import read_dumps

TORCH = "/opt/conda/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
PYTHON = "/opt/conda/lib/python3.12/runpy.py"
ALL = {"0": [0, 1, 2]}


def entry(number, line, *, op="all_reduce", size=5, group="0", state="completed", retired=True, p2p=False):
    """As torch writes it down, of a call in ``line`` of somebody's script."""
    calls = [(TORCH, 9, op), ("/mnt/somebody/train.py", line, "main"), (PYTHON, 8, "run")]
    frames = [{"filename": path, "line": at, "name": name} for path, at, name in calls]
    return {
        "frames": frames, "process_group": (group, "default_pg"), "collective_seq_id": number, "is_p2p": p2p,
        "profiling_name": f"nccl:{op}", "input_sizes": [[size]], "input_dtypes": ["Float"], "state": state,
        "retired": retired,
    }  # fmt: skip


def waits(number, line, **known):
    return entry(number, line, state="started", retired=False, **known)


@pytest.fixture
def dumped(tmp_path):
    def write(ranks, groups=ALL, *, form="pickle"):
        """Dumps of ``ranks``, which have these entries."""
        config = {name: {"name": name, "desc": "", "ranks": str(of)} for name, of in groups.items()}
        for rank, entries in ranks.items():
            dump = {"version": "2.10", "pg_config": config, "entries": entries}
            content = json.dumps(dump).encode() if form == "json" else pickle.dumps(dump)
            (tmp_path / f"trace_rank_{rank}").write_bytes(content)
        return read_dumps(tmp_path)

    return write


def told(dumps):
    return dumps.told()


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_who_did_not_come_is_named_with_the_call_and_who_waited(dumped, form):
    others = [entry(1, 4), waits(2, 7)]
    assert told(dumped({0: others, 1: [entry(1, 4)], 2: others}, form=form)) == (
        "rank 1 never came to call 2 (all_reduce of 5 × float32, line 7 of main): "
        "the last there was call 1 (all_reduce of 5 × float32, line 4 of main); ranks 0, 2 waited in it"
    )


def test_who_waits_for_another_is_not_at_fault(dumped):
    groups = {"0": [0, 1, 2], "1": [1, 2]}
    dumps = dumped({0: [entry(1, 4), waits(2, 7)], 1: [entry(1, 4), waits(1, 5, group="1")], 2: [entry(1, 4)]}, groups)
    assert told(dumps).startswith("rank 2 never came to call 1 of the group of ranks 1, 2 (all_reduce")


def test_who_runs_ahead_as_on_gpus_is_not_either(dumped):
    """NCCL's calls return at once: rank 0 has called three that wait for rank 1, rank 2 one."""
    ahead = [entry(1, 4), waits(2, 7), waits(3, 7), waits(4, 7)]
    assert told(dumped({0: ahead, 1: ahead[:1], 2: ahead[:2]})).startswith("rank 1 never came to call 2 (")


def test_ranks_that_wait_for_each_other_are_told_both(dumped):
    groups = {"0": [0, 1], "1": [0, 1]}
    dumps = dumped({0: [waits(1, 4)], 1: [waits(1, 5, group="1")]}, groups)
    assert told(dumps).splitlines()[0] == "ranks wait for each other:"
    assert "rank 0 never came to call 1 " in told(dumps)
    assert "rank 1 never came to call 1 " in told(dumps)


def test_a_call_that_is_not_alike_is_told_first(dumped):
    dumps = dumped({0: [waits(1, 4)], 1: [waits(1, 4, size=6)], 2: [waits(1, 4)]})
    assert told(dumps) == (
        "the ranks' calls do not match: call 1 (all_reduce, line 4 of main) has "
        "5 × float32 on ranks 0, 2, but 6 × float32 on rank 1"
    )


def test_a_rank_that_left_nothing_is_named(dumped):
    dumps = dumped({0: [waits(1, 4)], 2: [waits(1, 4)]})
    assert dumps.missing == (1,)
    assert "ranks 0, 2 waited in call 1 (" in told(dumps)
    assert "of rank 1 nothing is known" in told(dumps)
    assert "  rank 1: no dump" in str(dumps)


def test_how_many_ranks_there_were_can_be_said(dumped, tmp_path, capsys):
    dumped({0: [waits(1, 4)], 1: [waits(1, 4)]}, {})
    assert main(["diagnose", str(tmp_path), "--world", "3"]) == 1
    assert "of rank 2 nothing is known" in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path), "--world", "1"]) == 1
    assert "world must be an integer from 2" in capsys.readouterr().err


def test_a_call_in_which_all_are_points_at_the_machines(dumped):
    dumps = dumped({rank: [waits(1, 4)] for rank in range(3)})
    assert told(dumps).startswith("all came to call 1 (all_reduce of 5 × float32, line 4 of main), and it did not end")


def test_the_run_is_not_said_to_be_well_where_a_rank_left_nothing(dumped, tmp_path, capsys):
    dumped({0: [entry(1, 4)], 2: [entry(1, 4)]})
    assert main(["diagnose", str(tmp_path)]) == 1
    told = "ranks 0, 2 made the same calls, and all of them ended; of rank 1 nothing is known"
    assert capsys.readouterr().out.startswith(told)


def test_nor_where_nothing_was_recorded(dumped):
    assert dumped({0: [], 1: [], 2: []}).told() == "no rank has recorded a collective"


def test_who_else_is_in_a_group_that_torch_did_not_write_down_is_not_made_up(dumped):
    """As over gloo: ranks 1 and 2 are in it, and rank 2 did not come."""
    dumps = dumped({0: [entry(1, 4)], 1: [entry(1, 4), waits(1, 7, group="5")], 2: [entry(1, 4)]}, {})
    told = dumps.told()
    assert told.startswith(
        "rank 1 waited in call 1 of the group of ranks 1 (all_reduce of 5 × float32, line 7 of main)"
    )
    assert told.endswith("the dumps do not say who else is to come; ranks 0, 2 waited in no call")


def test_nothing_is_said_where_all_ended_and_messages_are_counted(dumped):
    dumps = dumped({0: [entry(1, 4), entry(1, 5, p2p=True)], 1: [entry(1, 4)], 2: [entry(1, 4)]})
    assert (told(dumps), dumps.messages) == ("", 1)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_a_strangers_pickle_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0").write_bytes(pickle.dumps({"entries": [], "trap": Trap()}))
    with pytest.raises(InvalidArgument, match=r"asks for posix\.mkdir"):
        read_dumps(tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", pickle.dumps([1]), pickle.dumps({"entries": [{}]}), b'{"entries": 1}', pickle.dumps({"a": 1})[:-3]],
)
def test_what_is_no_dump_is_refused_by_name(tmp_path, content):
    (tmp_path / "rank_0").write_bytes(content)
    with pytest.raises(InvalidArgument, match="rank_0 must be a Flight Recorder dump"):
        read_dumps(tmp_path)


@pytest.mark.parametrize(
    "odd",
    [
        {"collective_seq_id": "a"},
        {"collective_seq_id": 10**5000},
        {"process_group": ([0], "")},
        {"input_sizes": 5},
        {"input_sizes": [[[1]]]},
        {"input_dtypes": [["Float"]]},
    ],
)
def test_an_entry_of_other_types_is_refused_by_name(tmp_path, odd):
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": [entry(1, 4) | odd]}))
    with pytest.raises(InvalidArgument, match="rank_0 must be a Flight Recorder dump"):
        read_dumps(tmp_path)


@pytest.mark.parametrize("config", [[1], {"0": {"name": ["0"], "ranks": "[0]"}}, {"0": {"ranks": "[99999999999]"}}])
def test_so_are_groups(tmp_path, config):
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": [entry(1, 4)], "pg_config": config}))
    with pytest.raises(InvalidArgument, match="rank_0 must be a Flight Recorder dump"):
        read_dumps(tmp_path)


def test_a_number_that_is_no_ranks_is_refused(tmp_path):
    (tmp_path / "trace_20261122093000").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="named after a rank"):
        read_dumps(tmp_path)


def test_a_file_does_not_steer_the_terminal(dumped):
    assert "\x1b" not in str(dumped({0: [waits(1, 4, op="\x1b[2J")]}))


def test_a_folder_of_two_runs_asks_which(dumped, tmp_path, capsys):
    dumped({0: [entry(1, 4)], 1: [entry(1, 4)], 2: [waits(2, 7)]})
    (tmp_path / "older_0").write_bytes(b"")
    assert main(["diagnose", str(tmp_path)]) == 1
    assert "--prefix: here are older_N, trace_rank_N" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path), "--prefix", "trace_rank_"]) == 1
    assert capsys.readouterr().out.startswith("ranks 0, 1 never came")


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_dumps_is_refused(tmp_path, folder):
    with pytest.raises(InvalidArgument, match="folder must be"):
        read_dumps(tmp_path / folder)


def late(rank, folder):
    """Rank 1 comes to the second all-reduce when all have written down what they know."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True) if rank != 1 else None
    for name, dump in (("pickled", _dump_fr_trace), ("written", _dump_fr_trace_json)):
        folder.joinpath(f"{name}_{rank}").write_bytes(dump())
    while len(list(folder.glob("written_*"))) < 3:
        time.sleep(0.01)
    (work or dist.all_reduce(tensor, async_op=True)).wait()


def test_torchs_own_dumps_of_a_run_that_waits_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "16")
    start(late, [(rank, tmp_path) for rank in range(3)])
    pickled, written = read_dumps(tmp_path, "pickled_"), read_dumps(tmp_path, "written_")
    assert told(pickled).startswith("rank 1 never came to call 3 (all_reduce of 3 × float32, line ")
    assert told(written).startswith("rank 1 never came to call 3 (all_reduce of 3 × float32): ")
