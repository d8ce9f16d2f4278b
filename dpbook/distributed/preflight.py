"""What is wrong with a launch before it begins: found in a moment, without loading torch."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dpbook import machine
from dpbook.distributed.program.options import Options
from dpbook.planning import memory_per_rank
from dpbook.replicas.data import TRAINING_IMAGES

SMALL_SHM = 64 * 2**20
PER_PROCESS = 400 * 2**20
"""Bytes that Python with torch takes before there is a model."""


@dataclass(frozen=True)
class Finding:
    """``problem``: the launch cannot succeed; ``warning``: it may be slow or wrong."""

    kind: Literal["problem", "warning"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def preflight(
    nproc: int,
    *,
    nnodes: int = 1,
    endpoint: str | None = None,
    options: Options | None = None,
    gpus: Sequence[machine.Accelerator] | None = None,
) -> list[Finding]:
    """Look at this machine for ``nproc`` ranks on it; problems come first.

    ``endpoint`` is where several nodes meet, "host:port"; ``options`` are those of our training program, None for
    another script; ``gpus`` are this machine's, looked up if None.
    """
    devices = machine.accelerators() if gpus is None else list(gpus)
    found = [*_torch(), *_processes(nproc, devices), *_shared_memory(nproc, devices), *_endpoint(nnodes, endpoint)]
    if options is not None:
        found += [*_memory(nproc, nproc * nnodes, options, devices), *_batch(nproc * nnodes, options)]
    return sorted(found, key=lambda finding: finding.kind != "problem")


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("problem", "torch is not installed here: `dpbook doctor` says more")


def _processes(nproc: int, gpus: Sequence[machine.Accelerator]) -> Iterator[Finding]:
    if gpus and nproc > len(gpus):
        yield Finding(
            "problem", f"{nproc} ranks on {len(gpus)} GPUs: NCCL refuses two ranks on one; --nproc {len(gpus)} fits"
        )
    elif not gpus and nproc > machine.cores():
        yield Finding("warning", f"{nproc} ranks on {machine.cores()} cores and no GPU: they wait for one another")


def _shared_memory(nproc: int, gpus: Sequence[machine.Accelerator]) -> Iterator[Finding]:
    shared = machine.shared_memory()
    if shared is not None and shared < SMALL_SHM * max(nproc, 1) and (gpus or shared < SMALL_SHM):
        yield Finding(
            "warning", f"shared memory is {shared / 2**20:,.0f} MiB: in a container, give it more (--shm-size=1g)"
        )


def _endpoint(nnodes: int, endpoint: str | None) -> Iterator[Finding]:
    if nnodes == 1:
        return
    host, _, port = (endpoint or "").rpartition(":")
    if not host or not port.isdigit():
        yield Finding("problem", f"{nnodes} nodes need --rdzv-endpoint HOST:PORT of one of them, the same on all")
        return
    try:
        socket.getaddrinfo(host, int(port))
    except OSError:
        yield Finding(
            "problem", f"{host} of --rdzv-endpoint has no address here: use the number, or a name in /etc/hosts"
        )


def parameters(options: Options) -> int:
    """The parameters of the program's model, as `program.models` builds it."""
    if options.model == "cnn":
        return (9 * 16 + 16) + (16 * 9 * 32 + 32) + (512 * 64 + 64) + (64 * 10 + 10)
    width = options.width
    block = 12 * width * width + 13 * width
    return (256 + options.context) * width + options.depth * block + 2 * width


def _memory(nproc: int, world: int, options: Options, gpus: Sequence[machine.Accelerator]) -> Iterator[Finding]:
    """By the recipe of fp32 weights, gradients and moments, without activations: the least that is needed."""
    stage = 1 if options.strategy == "zero1" else 0
    need = memory_per_rank(parameters(options), world, stage, "autocast").total
    if gpus:
        room, where = min(gpu.memory for gpu in gpus), f"a GPU ({gpus[0].name})"
    else:
        total = machine.memory()
        if total is None:
            return
        room, where = total // nproc - PER_PROCESS, f"one of {nproc} ranks on this machine"
    if need > room:
        yield Finding(
            "problem", f"the model needs {need / 1e9:,.1f} GB per rank, and {where} has {max(room, 0) / 1e9:,.1f} GB"
        )


def _batch(world: int, options: Options) -> Iterator[Finding]:
    examples = world * options.batch * options.accumulation
    if options.model == "cnn" and examples > TRAINING_IMAGES:
        yield Finding(
            "problem",
            f"a global batch of {examples:,} is more than the {TRAINING_IMAGES:,} digits: no rank could take a step",
        )
