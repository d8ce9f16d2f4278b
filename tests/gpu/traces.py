"""Checks of what torch's profiler shows of a GPU: streams of collectives, names of kernels."""

import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from dpbook.overlap import read_profile
from tests.gpu.checks import NotRun, check

NO_PROFILER = "the profiler's rows of a device"


def _traced(gpu, call):
    """Return the events of the device in a trace of ``call``, and the book's reading of the same file."""
    torch.accelerator.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.accelerator.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")], read_profile(path)


@check(gpu_only=NO_PROFILER)
def collectives_are_on_the_stream_that_the_book_says(gpu):
    """In a trace a synchronous all-reduce is in the row of the caller's kernels, an asynchronous one in another."""
    x = gpu.ones(2**20)
    dist.all_reduce(x)  # opens connections

    def synchronous():
        x.mul_(0.5)
        dist.all_reduce(x)

    def asynchronous():
        x.mul_(0.5)
        dist.all_reduce(x, async_op=True).wait()

    same = {}
    for name, call in (("synchronous", synchronous), ("asynchronous", asynchronous)):
        events, _ = _traced(gpu, call)
        collective = {event["args"]["stream"] for event in events if "nccl" in event["name"].lower()}
        computation = {event["args"]["stream"] for event in events if "elementwise" in event["name"]}
        if not collective:
            raise NotRun("NCCL starts no kernel with so few ranks")
        same[name] = bool(collective & computation)
    assert same == {"synchronous": True, "asynchronous": False}, same
    return same


@check(gpu_only=NO_PROFILER)
def kernels_have_the_kinds_that_the_book_says(gpu):
    """`read_profile` takes products, attention and copies for what they are; the names are recorded."""
    x, q = torch.randn(512, 512, device=gpu.device), torch.randn(2, 4, 128, 64, device=gpu.device).bfloat16()
    pinned = torch.ones(2**20).pin_memory()

    def call():
        x @ x
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        pinned.to(gpu.device, non_blocking=True)

    call()
    events, timeline = _traced(gpu, call)
    kinds = {span.kind for span in timeline.spans if span.kind != "launch"}
    assert {"computation", "copy"} <= kinds, kinds
    assert "communication" not in kinds
    return {"names": sorted({event["name"][:60] for event in events})}
