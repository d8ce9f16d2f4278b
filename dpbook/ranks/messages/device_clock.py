"""The time on a device, whose work is queued: it goes on after the call that asked for it has returned."""

import time
from dataclasses import dataclass

import torch


def now(device: torch.device) -> float:
    """Seconds on `time.perf_counter` once all that was queued on ``device`` is done; a CPU queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class Moment:
    """A moment in the work of a device: when all is done that is queued there now. On the CPU, now."""

    seconds: float = 0.0
    event: torch.Event | None = None

    def until(self, later: "Moment") -> float:
        """Seconds from here to a ``later`` moment of the same device, which has come."""
        if self.event is None:
            return later.seconds - self.seconds
        return 1e-3 * float(self.event.elapsed_time(later.event))


def moment(device: torch.device) -> Moment:
    """The end of what is queued on the current stream of ``device``; the host does not wait for it."""
    if device.type == "cpu":
        return Moment(time.perf_counter())
    event = torch.Event(device, enable_timing=True)
    event.record()
    return Moment(event=event)
