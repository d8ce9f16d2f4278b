"""Where the seconds of a rank's step go, without holding up a device in the middle of it."""

import time
from collections.abc import Iterable

import torch
from torch import nn

from dpbook.program.metrics import PARTS


class Pace:
    """The moments of a step of ``parameters`` on ``device``: a kernel's are taken on the device, which runs later.

    While its own gradients are summed a rank transfers and waits: the one that computes longest waits for nobody, so
    that the shortest summing of all ranks is transfer, and what the others need above it is waiting.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        """Parameters are those that are trained, in the wrapper that they keep."""
        self._moments = [_moment(device) for _ in range(len(PARTS) + 1)]
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda _: self._moments[1].record())

    def begin(self) -> None:
        """The step begins: what it reads first counts as computing."""
        self._moments[0].record()

    def summed(self) -> None:
        """The backward has returned that summed the gradients."""
        self._moments[2].record()

    def updated(self) -> None:
        """The optimizer has stepped."""
        self._moments[3].record()

    def seconds(self) -> list[float]:
        """Of each of `PARTS` of the step that has ended; waits until the device has done it."""
        self._moments[-1].synchronize()
        pairs = zip(self._moments, self._moments[1:], strict=False)
        return [before.elapsed_time(after) / 1000 for before, after in pairs]


class _CpuMoment:
    """What `torch.cuda.Event` is on a GPU."""

    at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """A CPU queues nothing."""

    def elapsed_time(self, later: "_CpuMoment") -> float:
        """Milliseconds, as CUDA says it."""
        return 1000 * (later.at - self.at)


def _moment(device: torch.device) -> "_CpuMoment | torch.cuda.Event":
    return torch.cuda.Event(enable_timing=True) if device.type == "cuda" else _CpuMoment()
