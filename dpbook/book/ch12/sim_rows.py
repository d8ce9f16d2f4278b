"""What the stand-in's streams did, as a timeline: a row for the host, one for each stream."""

from collections.abc import Sequence
from typing import Any

from dpbook.core import InvalidArgument, plural
from dpbook.overlap import Kind, Span, Timeline

HOST = "host"
LANES: dict[Kind, str] = {"computation": "compute stream", "communication": "communication"}
COLLECTIVES = "c10d::"
"""How the names of torch.distributed's own kernels begin."""


def sim_timeline(
    kernels: Sequence[Sequence[Any]], names: Sequence[str], begun: float, waits: Sequence[tuple[float, float]] = ()
) -> Timeline:
    """The timeline of kernels as `sim.watch` lists them: name, stream, seconds launched, begun and ended.

    ``names`` are what to call them, in the order in which they were launched; ``begun`` is when the host began, and
    ``waits`` is when it waited for the device. A launch lasts from what the host did before until it is done. Raises
    `InvalidArgument` unless each kernel has a name.
    """
    if len(names) != len(kernels):
        raise InvalidArgument("names", names, f"one for each of {plural(len(kernels), 'kernel')}")
    host = [Span("waits", 0, HOST, "wait", start, end) for start, end in waits]
    device, free = [], begun
    for name, (torchs, _, launched, start, end) in zip(names, sorted(kernels, key=lambda k: k[2]), strict=True):
        free = max([free, *(end for _, end in waits if end <= launched)])
        host.append(Span("launch", 0, HOST, "launch", free, launched))
        kind: Kind = "communication" if torchs.startswith(COLLECTIVES) else "computation"
        device.append(Span(name, 0, LANES[kind], kind, start, end, ready=launched))
        free = launched
    return Timeline((*host, *device), (begun, max(span.end for span in (*host, *device))))
