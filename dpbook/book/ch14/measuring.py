"""How much memory a rank takes, as torch's allocator tells it."""

import gc
from collections.abc import Callable
from itertools import accumulate


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
