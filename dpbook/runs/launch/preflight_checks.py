"""What is wrong with a launch before it begins: found in a moment, without loading torch."""

import importlib.util
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dpbook.core import machine

SMALL_SHM = 64 * 2**20


@dataclass(frozen=True)
class Finding:
    """``problem``: the launch cannot succeed; ``warning``: it may be slow or wrong."""

    kind: Literal["problem", "warning"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def preflight(
    nproc: int, *, nnodes: int = 1, endpoint: str | None = None, gpus: Sequence[machine.Gpu] | None = None
) -> list[Finding]:
    """Look at this machine for ``nproc`` ranks on it; problems come first.

    ``endpoint`` is where several nodes meet, "host:port"; ``gpus`` are this machine's, looked up if None.
    """
    devices = machine.gpus() if gpus is None else list(gpus)
    found = [*_torch(), *_processes(nproc, devices), *_shared_memory(nproc, devices), *_endpoint(nnodes, endpoint)]
    return sorted(found, key=lambda finding: finding.kind != "problem")


def blind(gpus: Sequence[machine.Gpu]) -> list[Finding]:
    """What is to be said where there are GPUs and a torch that was built without them: it trains on the CPU."""
    if not gpus or machine.torch_build() != "cpu":
        return []
    said = (
        f"torch was built for the CPU and sees none of the GPUs here ({len(gpus)} × {gpus[0].name}): this run is on "
        "the CPU, over gloo. To use them, install torch with CUDA"
    )
    return [Finding("warning", said)]


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("problem", "torch is not installed here: `dpbook doctor` says more")


def _processes(nproc: int, gpus: Sequence[machine.Gpu]) -> Iterator[Finding]:
    if gpus and nproc > len(gpus):
        yield Finding(
            "problem", f"{nproc} ranks on {len(gpus)} GPUs: NCCL refuses two ranks on one; --nproc {len(gpus)} fits"
        )
    elif len({gpu.name for gpu in gpus[:nproc]}) > 1:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        yield Finding(
            "warning", f"the GPUs differ ({names}): every step waits for the slowest. Their numbers are those of "
            "nvidia-smi with CUDA_DEVICE_ORDER=PCI_BUS_ID only",
        )  # fmt: skip
    elif not gpus and nproc > machine.cores():
        yield Finding("warning", f"{nproc} ranks on {machine.cores()} cores and no GPU: they wait for one another")


def _shared_memory(nproc: int, gpus: Sequence[machine.Gpu]) -> Iterator[Finding]:
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
