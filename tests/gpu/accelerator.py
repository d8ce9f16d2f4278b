"""The device under test, a GPU or the stand-in: slow kernels, kernels that are timed, a stream that stands still."""

import contextlib
import math
import threading
import time
from datetime import timedelta
from functools import cached_property
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpbook.book import sim
from dpbook.ranks import own_device, regroup
from dpbook.runs.trainer import __main__ as program

PATIENCE = 60.0
"""Seconds for which the stand-in's stream stands still for a host that should not wait for it."""
STILL = 1.0
"""Seconds for which a GPU's stream stands still: more than the host needs to queue some steps."""
CALIBRATIONS, CALIBRATION_CYCLES = 8, 50_000_000
SPIN_MARGIN = 1.1
"""Factor of what a GPU is kept busy, whose clock may be faster than it was when it was measured."""
TIMEOUT = timedelta(seconds=100)
"""Of a collective: a check that hangs on some ranks ends the launch, and the next launch goes on behind it."""


class Accelerator:
    """The device under test. ``device``: the device of this rank; ``world``: the number of ranks."""

    def __init__(self, device):
        self.device, self.rank, self.world = device, dist.get_rank(), dist.get_world_size()

    @property
    def name(self):
        return torch.get_device_module(self.device).get_device_name(self.device)

    def ones(self, *shape):
        return torch.ones(*shape, device=self.device)

    def agree(self, value):
        """Return the values of all ranks, over gloo."""
        found = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    @contextlib.contextmanager
    def last_rank_late(self, seconds=0.5):
        """Let the collectives of the block come late: the stream of the last rank is busy for a while before them."""
        if self.rank == self.world - 1:
            self.spin(seconds)
        yield


class StandIn(Accelerator):
    is_stand_in = True

    def spin(self, seconds):
        """Keep the current stream busy."""
        torch.accelerator.current_stream().submit(lambda: time.sleep(seconds))

    def slower(self, seconds):
        """Let every kernel of the block take so many more seconds."""
        return sim.slower(seconds)

    @contextlib.contextmanager
    def watch(self):
        """Yield a function that returns the seconds of all kernels of the block on the current stream.

        With ``at_most`` a kernel counts with at most so many seconds, whatever other work delayed it.
        """
        stream = torch.accelerator.current_stream().stream_id

        def seconds(at_most=math.inf):
            torch.accelerator.synchronize()
            computed = [span for span in spans if span.stream == stream and not span.name.startswith("c10d::")]
            return sum(min(span.end - span.begin, at_most) for span in computed)

        with sim.watch() as spans:
            yield seconds

    @contextlib.contextmanager
    def still(self, stream=None, patience=None):
        """Let a stream stand still for the block. Raises AssertionError if the host waits for it.

        ``patience``: the seconds after which the stream goes on, so that a host that waits goes on too. A GPU's stream
        also stands still for so long.
        """
        gate, opened, patience = threading.Event(), [], PATIENCE if patience is None else patience
        stream = stream or torch.accelerator.current_stream()
        stream.submit(lambda: opened.append(gate.wait(patience)))
        try:
            yield
        finally:
            gate.set()
        stream.synchronize()
        assert opened == [True], "the host has waited for the device"


class Gpu(Accelerator):
    is_stand_in = False

    def __init__(self, device):
        super().__init__(device)
        with self.slower(
            1e-6
        ):  # the first use of a dispatch mode takes more than a second, and so does the calibration
            self.ones(1).mul_(1)

    @cached_property
    def _cycles_per_second(self):
        """The fastest of some rounds: the clock of an idle GPU rises only when there is work."""
        begin, end = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        fastest = 0.0
        for _ in range(CALIBRATIONS):
            begin.record()
            torch.cuda._sleep(CALIBRATION_CYCLES)
            end.record()
            end.synchronize()
            fastest = max(fastest, 1e3 * CALIBRATION_CYCLES / begin.elapsed_time(end))
        return fastest

    def spin(self, seconds):
        """Keep the current stream busy for so long or a little longer."""
        torch.cuda._sleep(int(SPIN_MARGIN * seconds * self._cycles_per_second))

    def slower(self, seconds):
        return _Kernels(self, seconds)

    @contextlib.contextmanager
    def watch(self):
        with _Kernels(self) as kernels:
            yield kernels.seconds

    @contextlib.contextmanager
    def still(self, stream=None, patience=None):
        torch.accelerator.synchronize()
        with stream or contextlib.nullcontext():
            self.spin(STILL if patience is None else patience)
            end = torch.Event(self.device)
            end.record()
        yield
        assert not end.query(), "the host has waited for the device"


class _Kernels(TorchDispatchMode):
    """Watches torch's operations on a GPU, those of backward too, and lengthens each by ``delay`` seconds.

    A `watch` sees the time that a `slower` around it adds. As on the stand-in, collectives are lengthened and not
    counted, and what starts no kernel is neither.
    """

    def __init__(self, gpu, delay=0.0):
        super().__init__()
        self._gpu, self._delay, self._spans = gpu, delay, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        begin, end = (torch.Event(self._gpu.device, enable_timing=True) for _ in range(2))
        begin.record()
        result = operation(*args, **(kwargs or {}))
        if _starts_no_kernel(operation) or not any(map(self._is_here, tree_leaves((args, result)))):
            return result
        if self._delay:
            self._gpu.spin(self._delay)
        end.record()
        if operation.namespace != "c10d":
            self._spans.append((begin, end))
        return result

    def _is_here(self, value):
        return isinstance(value, torch.Tensor) and value.device == self._gpu.device

    def seconds(self, at_most=math.inf):
        torch.accelerator.synchronize()
        return sum(min(begin.elapsed_time(end) / 1e3, at_most) for begin, end in self._spans)


def _starts_no_kernel(operation):
    """Return True for an operation that makes a view, or takes memory without writing into it."""
    return operation.is_view or "empty" in operation.__name__


def join(kind):
    """Join the process group as a rank of torchrun, or of `dpbook.ranks.start`, and return the `Accelerator`.

    ``kind`` is "cuda" or "sim". On the stand-in every rank sees one device, its own.
    """
    if kind == "sim":
        sim.install()
    if dist.is_initialized():
        device, backends = own_device()
        regroup(device, backends)
    else:
        with patch.object(program, "TIMEOUT", TIMEOUT):
            device = program.bind()
    if device.type == "cpu":
        raise SystemExit("there is no GPU for each rank that this torch can use")
    return (StandIn if kind == "sim" else Gpu)(device)
