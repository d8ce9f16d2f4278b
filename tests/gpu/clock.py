"""Checks of a GPU's clock, as chapter 12b teaches it: waits, events, streams, memory, errors."""

import gc
import subprocess
import sys
import threading
from time import perf_counter, sleep

import torch
import torch.distributed as dist
from torch import nn

from dpbook.ddp.sharded.passes import in_backward
from tests.gpu.checks import NotRun, check

SLOWER = 0.02
WAITED = 0.1
"""Seconds for which a stream stands still where the host is expected to wait for it."""


@check()
def a_timer_around_a_call_measures_its_launch(gpu):
    """Kernels are queued: a timer around 25 of them ends long before they do, and a line that reads a value waits."""
    x = gpu.ones(1000) * 1.01
    torch.accelerator.synchronize()
    with gpu.still():
        for _ in range(25):
            x = x * 1.01
    with gpu.slower(SLOWER):
        begun = perf_counter()
        for _ in range(25):
            x = x * 1.01
        timer = perf_counter() - begun
        x[0].item()
        done = perf_counter() - begun
    assert done >= 25 * SLOWER
    assert gpu.is_stand_in or timer < done / 2  # the stand-in's host may be slow
    return {"timer, s": timer, "done, s": done}


def _waits(gpu, call, patience):
    """Return True if a call returns only when the stream goes on, which stands still for ``patience`` seconds."""
    call()  # a first call has more to do
    torch.accelerator.synchronize()
    try:
        with gpu.still(patience=patience):
            call()
    except AssertionError:
        return True
    return False


@check()
def who_waits_for_the_device(gpu):
    """Calls that need values on the host wait for the stream; others, and pinned non_blocking copies, do not."""
    x, pinned, target = gpu.ones(8), torch.ones(2**10).pin_memory(), gpu.ones(2**10)
    go_on = {
        "x + 1": lambda: x + 1, "x.sum()": x.sum, "x.shape": lambda: x.shape,
        'x.to("cpu", non_blocking=True)': lambda: x.to("cpu", non_blocking=True),
        "a copy from pinned memory, non_blocking": lambda: target.copy_(pinned, non_blocking=True),
    }  # fmt: skip
    wait = {
        "x[0].item()": x[0].item, "print(x)": lambda: str(x), "x.cpu()": x.cpu, "x[x > 1]": lambda: x[x > 1],
        "if x[0] > 1:": lambda: bool(x[0] > 1),
    }  # fmt: skip
    found = {name: _waits(gpu, call, None) for name, call in go_on.items()}
    assert not any(found.values()), found
    found |= {name: _waits(gpu, call, WAITED) for name, call in wait.items()}
    assert all(found[name] for name in wait), found
    return found


@check(gpu_only="copies to the device that make the host wait")
def copies_from_memory_that_is_not_pinned(gpu):
    """A large copy from memory that is not pinned makes the host wait, also non_blocking; small ones are recorded."""
    figures = {}
    for size in (2**12, 2**26):
        host, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8, device=gpu.device)
        for words, non_blocking in (("", False), (", non_blocking", True)):
            copy = lambda: target.copy_(host, non_blocking=non_blocking)  # noqa: B023, E731
            figures[f"{size:,} bytes{words}"] = _waits(gpu, copy, WAITED)
    assert figures[f"{2**26:,} bytes, non_blocking"], figures
    return figures


@check()
def events_measure_the_stream(gpu):
    """Events around kernels measure them, not the host's sleep after them, and raise where they are read too early."""
    x = gpu.ones(1000)
    x = x * 1.01
    begin, end = (torch.Event(gpu.device, enable_timing=True) for _ in range(2))
    too_early = ""
    with gpu.still():
        begin.record()
        with gpu.slower(SLOWER):
            for _ in range(5):
                x = x * 1.01
        end.record()
        try:
            begin.elapsed_time(end)
        except RuntimeError as error:
            too_early = str(error)
    assert too_early, "elapsed_time did not raise before the end"
    begun = perf_counter()
    sleep(0.3)
    end.synchronize()
    elapsed = begin.elapsed_time(end) / 1e3
    assert elapsed >= 5 * SLOWER
    assert gpu.is_stand_in or elapsed < 5 * SLOWER + 0.2, elapsed
    assert perf_counter() - begun >= 0.3
    return {"elapsed, s": elapsed, "too early": too_early}


@check()
def an_empty_stream_counts_too(gpu):
    """Events around 50 small kernels, launched 5 ms apart, measure the launches: 250 ms and more."""
    x = gpu.ones(4)
    begin, end = (torch.Event(gpu.device, enable_timing=True) for _ in range(2))
    with gpu.watch() as kernels:
        begin.record()
        begin.synchronize()  # host and stream begin together
        for _ in range(50):
            x = x * 1.01
            sleep(0.005)
        end.record()
        end.synchronize()
        busy = kernels()
    elapsed = begin.elapsed_time(end) / 1e3
    assert elapsed >= 49 * 0.005
    assert busy < elapsed
    return {"events, s": elapsed, "kernels, s": busy}


@check()
def the_second_step_has_the_largest_peak(gpu):
    """With Adam, whose state is made at the end of step 1, the peak of allocated memory grows in step 2 for good."""
    width, rows = (256, 1024) if gpu.is_stand_in else (1024, 8192)
    figures = {}
    for count, larger_than_state in ((rows // 16, False), (rows, True)):
        peaks, reserved = _memory_of_steps(gpu, count, width)
        assert max(peaks[1:]) <= 1.01 * min(peaks[1:]), f"{count} rows: {peaks}"  # some 512 bytes depend on the host
        assert not larger_than_state or peaks[1] > 1.05 * peaks[0], f"{count} rows: {peaks}"
        figures |= {f"peak allocated, {count} rows": peaks, f"reserved, {count} rows": reserved}
    return figures


def _memory_of_steps(gpu, rows, width, depth=8):
    """Return the peak of allocated memory in each of four steps, and the memory reserved after it, in bytes."""
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)]).to(gpu.device)
    optimizer, x = torch.optim.Adam(model.parameters()), gpu.ones(rows, width)
    gc.collect()  # what other checks have left
    peaks, reserved = [], []
    for _ in range(4):
        torch.accelerator.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        torch.accelerator.synchronize()
        optimizer.step()
        torch.accelerator.synchronize()
        peaks.append(torch.accelerator.max_memory_allocated())
        reserved.append(torch.accelerator.memory_reserved())
    return peaks, reserved


@check()
def between_streams_only_an_event_makes_order(gpu):
    """A second stream reads the old value beside the first, and the new one behind an event; the host goes on."""
    x, first, other = gpu.ones(1), torch.accelerator.current_stream(), torch.Stream(gpu.device)
    x.add_(0)  # a GPU may wait for all streams when it loads a kernel, and when it takes memory
    first.synchronize()
    with other:
        (x * 1).tolist()
    early = torch.zeros(1, device=gpu.device)
    first.synchronize()
    with gpu.still():
        x.add_(1)
        event = first.record_event()
        with other:
            early.copy_(x)
            other.synchronize()
            other.wait_event(event)
            late = x * 1
    other.synchronize()
    assert (early.tolist(), late.tolist()) == ([1.0], [2.0])


@check()
def memory_goes_to_the_next_owner_at_once(gpu):
    """Memory that another stream still reads is handed out again, unless `record_stream` was called or it was kept."""
    found = {}
    for way in ("dropped", "record_stream", "kept"):
        owners = [gpu.ones(1000) for _ in range(66)]  # later no more memory has to be taken, for which a GPU may wait
        del owners
        other, x = torch.Stream(gpu.device), gpu.ones(1000)
        with other:
            read = torch.zeros(1000, device=gpu.device)  # the stream's own memory
        torch.accelerator.synchronize()
        with gpu.still(other):
            with other:
                read.copy_(x)
            if way == "record_stream":
                x.record_stream(other)
            kept, x = (x if way == "kept" else None), None
            owners = [torch.full((1000,), 7.0, device=gpu.device) for _ in range(64)]  # of all that is free
            torch.accelerator.current_stream().synchronize()
        other.synchronize()
        found[way] = read.unique().tolist()
        del kept, owners
    assert found["record_stream"] == found["kept"] == [1.0], found
    assert found["dropped"] == [7.0], found
    return found


def _before_the_last_rank(gpu, call, look):
    """Call a collective on all ranks, on the last one only when the others have looked at what happens without it."""
    last, word = gpu.world - 1, torch.zeros(1)
    dist.barrier()
    torch.accelerator.synchronize()
    if gpu.rank == last:
        for rank in range(last):
            dist.recv(word, src=rank)
    work = call()
    seen = look(work) if gpu.rank != last else None
    if gpu.rank != last:
        dist.send(word, dst=last)
    elif work is not None:
        work.wait()
    return seen


@check(ranks=2)
def wait_holds_the_stream_and_not_the_host(gpu):
    """`work.wait()` returns before the last rank has come; what is read without it is this rank's own value."""
    x, beside = gpu.ones(1), torch.Stream(gpu.device)
    dist.all_reduce(x.clone())  # opens connections
    torch.accelerator.synchronize()
    with beside:
        (x * 1).tolist()  # later nothing has to be loaded, for which a GPU may wait for all streams
    (x * 1).tolist()

    def look(work):
        with beside:
            early = (x * 1).tolist()
        work.wait()
        return early, x * 1

    seen = _before_the_last_rank(gpu, lambda: dist.all_reduce(x, async_op=True), look)
    if seen is not None:
        assert (seen[0], seen[1].tolist()) == ([1.0], [gpu.world])


@check(ranks=2)
def a_synchronous_collective_runs_on_the_callers_stream(gpu):
    """Since torch 2.8 an all-reduce without `async_op` runs on the caller's stream; with it, on one of its group."""
    x, caller = gpu.ones(4), torch.accelerator.current_stream()
    dist.all_reduce(x)  # opens connections

    def is_held(work):
        mark = caller.record_event()
        if work is not None:
            mark.synchronize()
        return not mark.query()

    synchronous = _before_the_last_rank(gpu, lambda: dist.all_reduce(x), is_held)
    asynchronous = _before_the_last_rank(gpu, lambda: dist.all_reduce(x, async_op=True), is_held)
    torch.accelerator.synchronize()
    assert gpu.rank == gpu.world - 1 or (synchronous, asynchronous) == (True, False)


@check(gpu_only="products with fewer digits")
def products_use_tf32_only_when_asked(gpu):
    """Products of fp32 matrices have TF32's digits only when asked for; those of a convolution are recorded."""
    if torch.cuda.get_device_capability(gpu.device) < (8, 0):
        raise NotRun("a GPU older than Ampere does not have TF32")

    def error(product, a, b):
        exact = a.double() @ b.double()
        return float((product.double() - exact).abs().max() / exact.abs().max())

    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=draw).to(gpu.device) for _ in range(2))
    errors = {"by default": error(a @ b, a, b)}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        errors["high"] = error(a @ b, a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    image, weight = a.T.reshape(1, 512, 512, 1), b.T.reshape(512, 512, 1, 1)  # a convolution of one point is a product
    errors["convolution"] = error(nn.functional.conv2d(image, weight)[0, :, :, 0].T, a, b)
    assert errors["by default"] < 1e-5 < 5e-5 < errors["high"], errors
    return errors


@check(gpu_only="autograd's thread of a device")
def hooks_run_in_the_devices_thread(gpu):
    """A hook on a gradient runs in a thread of autograd's, not in the caller's, and in the stream of its forward."""
    x, seen, stream = gpu.ones(4).requires_grad_(), [], torch.Stream(gpu.device)

    def look(_):
        seen.append((threading.get_ident(), in_backward(), torch.accelerator.current_stream().stream_id))

    with stream:
        y = x * 2
        y.register_hook(look)
        z = y.sum()
    z.backward()
    ((thread, within, stream_id),) = seen
    assert thread != threading.get_ident()
    assert within
    assert not in_backward()
    assert stream_id == stream.stream_id


@check()
def errors_come_late(gpu):
    """The line that reads a value raises what an earlier kernel did; on a GPU tried in a process that is lost by it."""
    if not gpu.is_stand_in:
        return _error_in_a_child(gpu.device.index)
    table, token, passed = gpu.ones(2, 4), torch.tensor([9], device=gpu.device), []
    try:
        row = nn.functional.embedding(token, table)
        passed.append("embedding")
        row.sum().item()
    except RuntimeError as error:
        assert passed == ["embedding"]
        return {"raised": str(error)}
    raise AssertionError("nothing was raised")


def _error_in_a_child(index):
    code = (
        f"import torch\nfrom torch.nn import functional as F\ntorch.cuda.set_device({index})\n"
        "table, tokens = torch.ones(2, 4, device='cuda'), [torch.tensor([n], device='cuda') for n in (1, 9)]\n"
        "F.embedding(tokens[0], table).sum().item()  # loads the kernels\n"
        "torch.cuda._sleep(2_000_000_000)  # otherwise the assert may have come before sum is launched\n"
        "row = F.embedding(tokens[1], table)\nprint('embedding passed', flush=True)\n"
        "total = row.sum()\nprint('sum passed', flush=True)\ntotal.item()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert ended.stdout.split("\n")[:2] == ["embedding passed", "sum passed"], ended.stdout + ended.stderr[-500:]
    assert "device-side assert" in ended.stderr, ended.stderr[-500:]
    return {"raised": next(line for line in ended.stderr.splitlines() if "device-side assert" in line)}
