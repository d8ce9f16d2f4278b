"""Is a timeline restored from its trace, and are torch's traces read into the right spans?"""

import gzip
import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch08 import mlp
from dpbook.core import checkout
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import (
    KINDS,
    Span,
    Timeline,
    chrome_trace,
    equal_layers,
    hook,
    plan,
    read_profile,
    read_profiles,
    recorded_traces,
    simulate_step,
    split_waits,
    write_trace,
)
from dpbook.overlap.timeline.trace import Phases
from tests.cases import each

DATA = Path(__file__).parent / "data"
CUDA = DATA / "cuda_made_by_hand.json"
LAYERS = equal_layers(3, 0.1, 0.2, 30)
STEP = simulate_step(LAYERS, hook(LAYERS), lambda n: n / 300, factors=(1, 1.7), streams=2, kernel_launch=0.001)


# Written and read


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_what_is_written_is_read_as_the_same_timeline(tmp_path, name):
    assert read_profile(write_trace(STEP, tmp_path / name)) == STEP


moments = st.floats(-1e6, 1e6)
spans = st.builds(
    lambda name, rank, lane, kind, times: Span(name, rank, lane, kind, *sorted(times)),
    st.text(),
    st.integers(0, 3),
    st.text(),
    st.sampled_from(KINDS),
    st.tuples(moments, moments),
)


@given(st.lists(spans, max_size=8))
def test_any_timeline_survives_to_the_last_bit(tmp_path_factory, drawn):
    timeline = Timeline(tuple(drawn), (-2e6, 2e6))
    path = tmp_path_factory.getbasetemp() / "any.json"
    assert read_profile(write_trace(timeline, path)) == timeline


def test_the_trace_has_a_process_for_each_rank_and_a_thread_for_each_lane():
    events = chrome_trace(STEP)["traceEvents"]
    named = {(e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert [named[rank, 0, "process_name"] for rank in (0, 1)] == ["rank 0", "rank 1"]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(STEP.spans)
    for event, span in zip(complete, STEP.spans, strict=True):
        assert named[event["pid"], event["tid"], "thread_name"] == span.lane
        assert (event["ts"], event["ts"] + event["dur"]) == pytest.approx((span.start * 1e6, span.end * 1e6))


def test_ranks_written_apart_are_read_together(tmp_path):
    paths = [write_trace(STEP.of(rank), tmp_path / f"{rank}.json") for rank in (0, 1)]
    assert read_profiles(paths) == STEP


# torch on CPUs, recorded


def test_the_recorded_run_has_both_ranks_and_all_kinds():
    timeline = read_profiles(recorded_traces())
    assert timeline.ranks == (0, 1)
    assert timeline.window[0] == 0
    for rank in timeline.ranks:
        for kind in ("computation", "communication", "launch"):
            assert 0 < timeline.busy(kind, rank) < timeline.duration
        assert 0 < timeline.exposed(rank) < timeline.busy("communication", rank)


def test_the_recorded_computations_say_their_phase_in_its_turn():
    """Events of forward, backward and optimizer; events between them have no phase."""
    for path in recorded_traces():
        timeline = read_profile(path, step=10)
        phases = [s.name.split()[0] for s in timeline.spans if s.kind == "computation" and " " in s.name]
        assert list(dict.fromkeys(phases)) == ["forward", "backward", "optimizer"]
        assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)
        assert phases.count("forward") == 12  # six linear layers and their activations


def test_a_model_without_a_wrapper_says_its_phases_too(tmp_path):
    """Two layers and a loss on this machine: autograd numbers what it records."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.ones(2, 4))
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    names = [span.name for span in read_profile(tmp_path / "trace.json").spans]
    assert [name for name in names if name.endswith("::linear")] == ["forward aten::linear", "aten::linear"]
    assert "forward aten::square" in names
    assert "backward aten::threshold_backward" in names
    assert names.count("optimizer aten::add_") == 2


def test_a_kernel_has_the_phase_of_its_launch():
    def event(cat, name, tid, ts, dur, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    phases = Phases(
        [
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 2, 10, 10),
            event("cuda_runtime", "cudaLaunchKernel", 2, 12, 1, correlation=7),
            event("cuda_runtime", "cudaLaunchKernel", 1, 12, 1, correlation=8),
        ]
    )
    kernels = (event("kernel", "gemm", 99, 50, 5, correlation=c) for c in (7, 8, 9))
    assert [phases.of(kernel) for kernel in kernels] == ["backward", "", ""]
    assert [phases.of(event("cpu_op", "aten::mm", 2, ts, 1)) for ts in (9, 10, 19, 20)] == [
        "",
        "backward",
        "backward",
        "",
    ]


def test_the_recorded_steps_sent_the_buckets_that_the_plan_says():
    about = json.loads((checkout.root() / "dpbook/data/traces/ddp_gloo.json").read_text(encoding="utf-8"))
    buckets = plan(mlp(6, 512), cap=about["bucket_cap_mb"] * 2**20, first=None)
    for step in (10, 11):
        timeline = read_profiles(recorded_traces(), step)
        for rank in timeline.ranks:
            names = [span.name for span in timeline.spans if span.rank == rank]
            assert names.count("gloo:all_reduce") == names.count("c10d::allreduce_") == buckets.calls


def test_a_thread_does_one_thing_at_a_time():
    for path in recorded_traces():
        timeline = read_profile(path)
        (rank,) = timeline.ranks
        for lane in timeline.lanes(rank):
            spans = [span for span in timeline.spans if span.lane == lane]
            assert all(a.end <= b.start for a, b in pairwise(spans))


def test_in_the_recorded_run_some_communication_is_waiting():
    timeline = read_profiles(recorded_traces(), step=11)
    apart = split_waits(timeline)
    assert 0 < apart.busy("wait") < timeline.busy("communication")
    for rank in timeline.ranks:
        assert apart.busy("communication", rank) <= timeline.busy("communication", rank)


def test_the_recorded_files_name_no_host_or_folder_and_say_where_they_come_from():
    assert len(recorded_traces()) == 2
    for path in recorded_traces():
        text = gzip.decompress(path.read_bytes()).decode()
        assert len(path.read_bytes()) < 200_000
        assert "host_name" not in text
        assert ".py" not in text
        assert '"/' not in text
    about = json.loads((checkout.root() / "dpbook/data/traces/ddp_gloo.json").read_text(encoding="utf-8"))
    assert about["files"] == [path.name for path in recorded_traces()]
    assert {"machine", "torch", "python", "date", "model", "backend"} <= set(about)


# torch on GPUs, made by hand


def test_kernels_and_not_operators_are_what_a_gpu_does():
    timeline = read_profile(CUDA)
    assert timeline.ranks == (3,)
    found = sorted((s.kind, s.lane, round(1e6 * s.start), round(1e6 * s.end)) for s in timeline.spans)
    assert found == [
        ("communication", "communication", 280, 680),
        ("communication", "communication", 730, 780),
        ("computation", "compute", 80, 380),
        ("computation", "compute", 430, 480),
        ("computation", "compute", 480, 490),
        ("computation", "compute", 1080, 1090),
        ("copy", "copy", 10, 30),
        ("launch", "launch", 0, 10),
        ("launch", "launch", 100, 140),
        ("launch", "launch", 150, 155),
    ]
    assert timeline.exposed() == pytest.approx(290e-6)
    assert timeline.overlap() == pytest.approx(160 / 450)


def test_a_step_is_its_window_and_what_starts_in_it():
    timeline = read_profile(CUDA, step=5)
    assert timeline.window == pytest.approx((0, 1e-3))
    assert len(timeline.spans) == 9
    with pytest.raises(InvalidArgument, match=r"step must be a step in cuda_made_by_hand.json \(5\), got 6"):
        read_profile(CUDA, step=6)


def on_a_gpu(tmp_path, *events):
    """Return the timeline of a trace with events (category, name, thread or stream, start and end in microseconds)."""
    rows = [
        {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": start, "dur": end - start}
        for category, name, thread, start, end in events
    ]
    return partial(read_profile, write(tmp_path / "gpu.json", {"traceEvents": rows}))


def test_a_kernel_may_begin_before_the_one_before_it_ends(tmp_path):
    """Programmatic launches do this: the second kernel hides communication, and must not be lost.

    Nor must one that also ends before.
    """
    timeline = on_a_gpu(
        tmp_path, ("kernel", "gemm", 7, 0, 50), ("kernel", "gemm", 7, 48, 98), ("kernel", "add", 7, 90, 97),
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, 50, 96),
    )()  # fmt: skip
    assert timeline.exposed() == pytest.approx(0)
    assert timeline.busy("computation") == pytest.approx(98e-6)
    assert len(timeline.spans) == 4


def test_operators_that_another_holds_are_dropped_and_one_that_lasts_longer_is_not(tmp_path):
    timeline = on_a_gpu(
        tmp_path, ("cpu_op", "aten::linear", 1, 0, 50), ("cpu_op", "aten::addmm", 1, 10, 50),
        ("cpu_op", "aten::relu", 1, 49, 60), ("cpu_op", "aten::mm", 2, 10, 20),
    )()  # fmt: skip
    assert sorted(span.name for span in timeline.spans) == ["aten::linear", "aten::mm", "aten::relu"]


def test_a_step_of_a_gpu_is_when_the_gpu_works_on_it(tmp_path):
    """The CPU is in step 6 while the GPU still runs the backward of step 5, and NCCL has its own stream."""
    read = on_a_gpu(
        tmp_path, ("user_annotation", "ProfilerStep#5", 1, 0, 100), ("user_annotation", "ProfilerStep#6", 1, 100, 200),
        ("gpu_user_annotation", "ProfilerStep#5", 7, 20, 315), ("gpu_user_annotation", "ProfilerStep#6", 7, 320, 600),
        ("gpu_user_annotation", "ProfilerStep#5", 20, 150, 310), ("kernel", "forward", 7, 20, 110),
        ("kernel", "backward", 7, 110, 290), ("kernel", "ncclKernel_AllReduce", 20, 150, 310),
        ("kernel", "optimizer", 7, 310, 315), ("kernel", "forward of 6", 7, 320, 400),
    )  # fmt: skip
    fifth, sixth = read(step=5), read(step=6)
    assert [span.name for span in fifth.spans] == ["ncclKernel_AllReduce", "forward", "backward", "optimizer"]
    assert fifth.window == pytest.approx((0, 295e-6))
    assert [span.name for span in sixth.spans] == ["forward of 6"]


@each(
    ("category", "name", "kind"),
    [
        ("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
        ("kernel", "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs4K)", "communication"),
        ("kernel", "ncclSymDevKernel_AllReduce_AGxLLMC_R_sum_f32(ncclSymDevArgs)", "communication"),
        ("kernel", "void at::native::vectorized_elementwise_kernel<4, ...>", "computation"),
        ("kernel", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "computation"),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", "copy"),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", "computation"),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", "communication"),
        ("kernel", "nvjet_tst_192x192_64x4_1x2_h_bz_coopA_NNT", "computation"),
        ("kernel", "triton_poi_fused_add_gelu_0", "computation"),
        ("gpu_memset", "Memset (Device)", "computation"),
        ("cuda_runtime", "cudaLaunchKernelExC", "launch"),
        ("cuda_driver", "cuLaunchKernelEx", "launch"),
        ("cuda_runtime", "cudaGraphLaunch", "launch"),
        ("cuda_runtime", "hipGraphLaunch", "launch"),
        ("cuda_runtime", "cudaEventRecord", None),
        ("cpu_op", "c10d::allreduce_", "launch"),
        ("cpu_op", "aten::mm", None),
        ("gpu_user_annotation", "nccl:all_reduce", None),
        ("user_annotation", "nccl:all_reduce", None),
        ("user_annotation", "gloo:all_reduce", "communication"),
    ],
)
def test_what_an_event_beside_kernels_is_follows_from_its_name(tmp_path, category, name, kind):
    timeline = on_a_gpu(tmp_path, ("kernel", "gemm", 7, 0, 1), (category, name, 8, 1, 2))()
    assert [span.kind for span in timeline.spans if span.start > 0] == ([kind] if kind else [])


def test_traces_with_other_origins_are_read_on_one_clock(tmp_path):
    data = json.loads(CUDA.read_text(encoding="utf-8"))
    data["distributedInfo"]["rank"] = 4
    data["baseTimeNanoseconds"] += 250_000
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data))
    both = read_profiles([CUDA, other])
    starts = [min(s.start for s in both.spans if s.rank == rank) for rank in (3, 4)]
    assert starts == pytest.approx([0, 250e-6])


# Files that are no trace


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def event(**changes):
    return {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, **changes}]}


OWN = chrome_trace(STEP)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a trace in JSON"),
        (b"{", "a trace in JSON"),
        (b"\xff\xfe", "a trace in JSON"),
        (gzip.compress(b"{}" * 100, mtime=0)[:20], "data is damaged"),
        (b"\x1f\x8b not really", "data is damaged|can be read"),
        ({}, 'a list "traceEvents"'),
        (3, 'a list "traceEvents"'),
        ({"traceEvents": []}, "computation or communication in it"),
        ([], "computation or communication in it"),
        (event(name="autograd::engine::evaluate_function"), "computation or communication in it"),
        (event(ts="now"), "events have a ts and a dur"),
        (event(dur=-1), "events have a ts and a dur"),
        ({**OWN, "otherData": {**OWN["otherData"], "version": 2}}, "of version 1, not 2"),
        ({**OWN, "otherData": {**OWN["otherData"], "window_s": 3}}, "as write_trace wrote it"),
        ({**OWN, "traceEvents": [{"ph": "X"}]}, "as write_trace wrote it"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, content, message):
    with pytest.raises(InvalidArgument, match=message):
        read_profile(write(tmp_path / "bad.json", content))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([DATA / "none.json"], "a file that can be read"),
        ([DATA], "a file that can be read"),
        ([], "one path or more"),
        ([CUDA, CUDA], "without rank 3"),
    ],
)
def test_bad_paths_are_named(paths, message):
    with pytest.raises(InvalidArgument, match=message):
        read_profiles(paths)


def test_own_traces_and_torchs_do_not_mix(tmp_path):
    with pytest.raises(InvalidArgument, match=r"all from torch\.profiler, or all from write_trace"):
        read_profiles([CUDA, write_trace(STEP, tmp_path / "own.json")])
