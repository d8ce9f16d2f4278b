"""What a rank sends and how much memory it takes, as the system and torch's allocator tell it."""

import gc
from collections.abc import Callable
from itertools import accumulate
from math import nan
from pathlib import Path

COUNTERS = Path("/proc/self/io")
"""Where Linux says how much a process has written, to its sockets too."""


def sent(step: Callable[[], object]) -> float:
    """Bytes that this process writes while ``step`` runs, which on a rank that prints nothing are what it sends.

    nan where the system does not count them: Linux does.
    """
    before = _written()
    step()
    return _written() - before


def allocated(step: Callable[[], object]) -> int:
    """Bytes at the peak of ``step`` beyond those before it, as torch's profiler reports allocations on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    collects = gc.isenabled()
    gc.collect()
    gc.disable()  # what others have left would be given back meanwhile, and the peak look lower
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
    finally:
        gc.enable() if collects else None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), default=0)


def _written() -> float:
    if not COUNTERS.exists():
        return nan
    lines = (line.split(": ") for line in COUNTERS.read_text().splitlines())
    return next(float(count) for name, count in lines if name == "wchar")
