"""The time on a device, whose work is queued: it goes on after the call that asked for it has returned."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds on `time.perf_counter` once all that was queued on ``device`` is done; a CPU queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
