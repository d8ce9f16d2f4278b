"""Are Flight Recorder dumps of any program read without running them, and diagnosed?"""

import json
import os
import pickle
import time

import pytest

from dpbook.app.command_line import main
from dpbook.core import InvalidArgument
from dpbook.ranks import start
from dpbook.runs.postmortem import flight_recorder, read_dumps
from dpbook.runs.postmortem.collective_calls import describe_late_ranks, read_calls

TORCH = "/opt/conda/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
PYTHON = "/opt/conda/lib/python3.12/runpy.py"
ALL = {"0": [0, 1, 2]}


def entry(
    number,
    line,
    *,
    op="all_reduce",
    size=5,
    group="0",
    state="completed",
    retired=True,
    p2p=False,
    backend="nccl",
    at=0,
):
    """Return a call in ``line`` of a script, as torch records it."""
    calls = [(TORCH, 9, op), ("/mnt/somebody/train.py", line, "main"), (PYTHON, 8, "run")]
    frames = [{"filename": path, "line": number, "name": name} for path, number, name in calls]
    return {
        "frames": frames, "process_group": (group, "default_pg"), "collective_seq_id": number, "is_p2p": p2p,
        "profiling_name": f"{backend}:{op}", "input_sizes": [[size]], "input_dtypes": ["Float"], "state": state,
        "retired": retired, "time_created_ns": at, "timeout_ms": 1000 * line,
    }  # fmt: skip


def waits(number, line, **known):
    return entry(number, line, state="started", retired=False, **known)


@pytest.fixture
def dumped(tmp_path):
    def write(ranks, groups=ALL, *, form="pickle"):
        """Write and read the dumps of ``ranks``, which have these entries."""
        config = {name: {"name": name, "desc": "", "ranks": str(of)} for name, of in groups.items()}
        for rank, entries in ranks.items():
            dump = {"version": "2.10", "pg_config": config, "entries": entries}
            content = json.dumps(dump).encode() if form == "json" else pickle.dumps(dump)
            (tmp_path / f"trace_rank_{rank}").write_bytes(content)
        return read_dumps(tmp_path)

    return write


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_rank_that_never_joined_is_named_with_the_call_and_the_ranks_that_waited(dumped, form):
    others = [entry(1, 4), waits(2, 7)]
    diagnosis = dumped({0: others, 1: [entry(1, 4)], 2: others}, form=form).diagnosis()
    assert diagnosis == (
        "rank 1 never joined collective 2 (all_reduce of 5 × float32, train.py:7 in main): "
        "its last was collective 1 (all_reduce of 5 × float32, train.py:4 in main); ranks 0, 2 waited in it"
    )


def test_a_rank_that_waits_for_another_is_not_at_fault(dumped):
    groups = {"0": [0, 1, 2], "1": [1, 2]}
    dumps = dumped({0: [entry(1, 4), waits(2, 7)], 1: [entry(1, 4), waits(1, 5, group="1")], 2: [entry(1, 4)]}, groups)
    assert dumps.diagnosis().startswith("rank 2 never joined collective 1 of the group of ranks 1, 2 (all_reduce")


def test_a_rank_that_runs_ahead_as_on_gpus_is_not_at_fault_either(dumped):
    """NCCL's calls return at once: rank 0 has called three that wait for rank 1, rank 2 one."""
    ahead = [entry(1, 4), waits(2, 7), waits(3, 7), waits(4, 7)]
    dumps = dumped({0: ahead, 1: ahead[:1], 2: ahead[:2]})
    assert dumps.diagnosis().startswith("rank 1 never joined collective 2 (")


def test_the_last_call_of_a_rank_is_the_last_of_all_backends(monkeypatch, tmp_path):
    """NCCL's recorder and that of all other backends know only their own calls, and number them from 1."""
    functions = pytest.importorskip("torch.distributed.distributed_c10d").torch._C._distributed_c10d

    def write(rank, *, nccl, gloo):
        for name, entries in (("nccl", nccl), ("fr", gloo)):
            dump = pickle.dumps({"entries": entries})
            monkeypatch.setattr(functions, f"_dump_{name}_trace", lambda dump=dump, **parts: dump, raising=False)
        flight_recorder.write_calls(tmp_path, rank)

    gradients = [entry(1, 40, at=20), entry(2, 40, at=30)]
    write(0, nccl=[*gradients, waits(3, 40, at=50)], gloo=[entry(1, 4, backend="gloo", at=10)])
    assert flight_recorder.time_limit() == 40
    write(1, nccl=gradients, gloo=[entry(1, 4, backend="gloo", at=10), waits(2, 7, backend="gloo", at=40)])
    assert flight_recorder.time_limit() == 7
    calls = [json.loads((tmp_path / f"calls-{rank}.json").read_text())["calls"] for rank in (0, 1)]
    order = [[(call["backend"], call["number"]) for call in each] for each in calls]
    assert order[0] == [("gloo", 1), ("nccl", 1), ("nccl", 2), ("nccl", 3)]
    assert order[1] == [("gloo", 1), ("nccl", 1), ("nccl", 2), ("gloo", 2)]
    first, second = (f"collective {n} over {b} (all_reduce of 5 × float32, train.py:{line} in main)" for n, b, line in
                     ((3, "nccl", 40), (2, "gloo", 7)))  # fmt: skip
    assert describe_late_ranks(read_calls(tmp_path, 2)).splitlines() == [
        "the ranks wait for each other:",
        f"rank 0 never joined {second}: its last was {first}; rank 1 waited in it",
        f"rank 1 never joined {first}: its last was {second}; rank 0 waited in it",
    ]


def test_ranks_that_wait_for_each_other_are_both_named(dumped):
    groups = {"0": [0, 1], "1": [0, 1]}
    dumps = dumped({0: [waits(1, 4)], 1: [waits(1, 5, group="1")]}, groups)
    assert dumps.diagnosis().splitlines()[0] == "the ranks wait for each other:"
    assert "rank 0 never joined collective 1 " in dumps.diagnosis()
    assert "rank 1 never joined collective 1 " in dumps.diagnosis()


def test_a_call_that_does_not_match_is_reported_first(dumped):
    dumps = dumped({0: [waits(1, 4)], 1: [waits(1, 4, size=6)], 2: [waits(1, 4)]})
    assert dumps.diagnosis() == (
        "the ranks' calls do not match: collective 1 (all_reduce, train.py:4 in main) has "
        "5 × float32 on ranks 0, 2, but 6 × float32 on rank 1"
    )


def test_a_rank_without_a_dump_is_named(dumped):
    dumps = dumped({0: [waits(1, 4)], 2: [waits(1, 4)]})
    assert dumps.missing == (1,)
    assert "ranks 0, 2 waited in collective 1 (" in dumps.diagnosis()
    assert "rank 1 left no record" in dumps.diagnosis()
    assert "  rank 1: no dump" in str(dumps)


def test_the_number_of_ranks_can_be_given(dumped, tmp_path, capsys):
    dumped({0: [waits(1, 4)], 1: [waits(1, 4)]}, {})
    assert main(["diagnose", str(tmp_path), "--world", "3"]) == 1
    assert "rank 2 left no record" in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path), "--world", "1"]) == 1
    assert "world must be an integer from 2" in capsys.readouterr().err


def test_a_call_that_all_ranks_joined_points_at_the_machines(dumped):
    dumps = dumped({rank: [waits(1, 4)] for rank in range(3)})
    assert dumps.diagnosis().startswith(
        "all ranks joined collective 1 (all_reduce of 5 × float32, train.py:4 in main), but "
    )


def test_a_run_with_a_missing_dump_is_not_called_healthy(dumped, tmp_path, capsys):
    dumped({0: [entry(1, 4)], 2: [entry(1, 4)]})
    assert main(["diagnose", str(tmp_path)]) == 1
    diagnosis = "ranks 0, 2 called the same collectives, and all of them completed; rank 1 left no dump"
    assert capsys.readouterr().out.startswith(diagnosis)


def test_nor_is_a_run_without_records(dumped):
    assert dumped({0: [], 1: [], 2: []}).diagnosis() == "no rank recorded a collective"


def test_the_other_ranks_of_a_group_that_torch_did_not_record_are_not_made_up(dumped):
    """So it is over gloo: the group has ranks 1 and 2, and rank 2 did not join."""
    dumps = dumped({0: [entry(1, 4)], 1: [entry(1, 4), waits(1, 7, group="5")], 2: [entry(1, 4)]}, {})
    assert dumps.diagnosis() == (
        "rank 1 waited in collective 1 of the group of rank 1 (all_reduce of 5 × float32, train.py:7 in main); "
        "the dumps do not list the other ranks of this group; ranks 0, 2 waited in no collective"
    )


def test_a_healthy_run_has_no_diagnosis_and_messages_are_counted(dumped):
    dumps = dumped({0: [entry(1, 4), entry(1, 5, p2p=True)], 1: [entry(1, 4)], 2: [entry(1, 4)]})
    assert (dumps.diagnosis(), dumps.messages) == ("", 1)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_a_strangers_pickle_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0").write_bytes(pickle.dumps({"entries": [], "trap": Trap()}))
    with pytest.raises(InvalidArgument, match=r"asks for posix\.mkdir"):
        read_dumps(tmp_path)
    assert not (tmp_path / "sprung").exists()


def dump_of(config=None, **fields):
    """Return a dump of one call with these fields, and of groups if there is a ``config``."""
    return pickle.dumps({"entries": [entry(1, 4) | fields], "pg_config": config or {}})


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"hello", pickle.dumps([1]), pickle.dumps({"entries": [{}]}), b'{"entries": 1}', dump_of()[:-3]),
        dump_of(collective_seq_id="a"),
        dump_of(collective_seq_id=10**5000),
        dump_of(process_group=([0], "")),
        dump_of(input_sizes=5),
        dump_of(input_sizes=[[[1]]]),
        dump_of(input_dtypes=[["Float"]]),
        dump_of([1]),
        dump_of({"0": {"name": ["0"], "ranks": "[0]"}}),
        dump_of({"0": {"ranks": "[99999999999]"}}),
    ],
)
def test_a_file_that_is_no_dump_is_refused_by_name(tmp_path, content):
    (tmp_path / "rank_0").write_bytes(content)
    with pytest.raises(InvalidArgument, match="rank_0 must be a Flight Recorder dump"):
        read_dumps(tmp_path)


def test_a_file_name_with_a_number_too_large_for_a_rank_is_refused(tmp_path):
    (tmp_path / "trace_20261122093000").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="named after a rank"):
        read_dumps(tmp_path)


def test_a_file_does_not_steer_the_terminal(dumped):
    assert "\x1b" not in str(dumped({0: [waits(1, 4, op="\x1b[2J")]}))


def test_a_folder_of_two_runs_needs_a_prefix(dumped, tmp_path, capsys):
    dumped({0: [entry(1, 4)], 1: [entry(1, 4)], 2: [waits(2, 7)]})
    (tmp_path / "older_0").write_bytes(b"")
    assert main(["diagnose", str(tmp_path)]) == 1
    assert "choose one of older_N, trace_rank_N with --prefix" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path), "--prefix", "trace_rank_"]) == 1
    assert capsys.readouterr().out.startswith("ranks 0, 1 never joined")


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_dumps_is_refused(tmp_path, folder):
    with pytest.raises(InvalidArgument, match="folder must be"):
        read_dumps(tmp_path / folder)


def late(rank, folder):
    """Join the second all-reduce, on rank 1 only when all ranks have written their dumps."""
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


def test_torchs_own_dumps_of_a_waiting_run_are_diagnosed(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "16")
    start(late, [(rank, tmp_path) for rank in range(3)])
    pickled, written = read_dumps(tmp_path, "pickled_"), read_dumps(tmp_path, "written_")
    assert pickled.diagnosis().startswith("rank 1 never joined collective 3 (all_reduce of 3 × float32, test_dumps.py:")
    assert written.diagnosis().startswith("rank 1 never joined collective 3 (all_reduce of 3 × float32): ")
