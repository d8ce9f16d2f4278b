"""Checks before a launch. They load no torch; those of the machine are quick, messages between GPUs take seconds."""

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from dpbook.core import PACKAGE, machine, plural, run_probe

SMALL_SHARED_MEMORY = 64 * 2**20
"""Bytes; a container has so few by default."""
PEER_PROBE = (sys.executable, "-m", "dpbook.runs.launch.torch_probe", "peers")
PEER_SECONDS = 90.0
"""Seconds for the messages of all pairs of GPUs, with torch's start and one context per GPU."""
PEER_REMEDY = (
    "direct copies between GPUs fail behind ACS or an IOMMU. Have these switched off, or set NCCL_P2P_DISABLE=1, which "
    "sends through the host's memory and is slower (docs/server.md)"
)


class PreflightFinding(NamedTuple):
    """Finding of a check. ``problem``: the launch cannot succeed. ``warning``: it may be slow or wrong."""

    kind: Literal["problem", "warning"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def preflight(
    nproc: int, gpus: Sequence[machine.Gpu], *, nnodes: int = 1, endpoint: str | None = None, is_script: bool = False
) -> list[PreflightFinding]:
    """Check this machine, which has these ``gpus``, for a launch of ``nproc`` ranks; return findings, problems first.

    ``endpoint`` is where several nodes meet, "host:port". A script (``is_script``) may use no GPU, or let ranks share
    one over gloo.
    """
    missing = PreflightFinding("problem", "torch is not installed here: run `dpbook doctor` for details")
    findings = [
        *([missing] if importlib.util.find_spec("torch") is None else []),
        *_check_processes(nproc, gpus, is_script),
        *_check_endpoint(nnodes, endpoint),
    ]
    shared = machine.shared_memory()
    needed = SMALL_SHARED_MEMORY * (max(nproc, 1) if gpus else 1)
    if shared is not None and shared < needed:
        text = f"shared memory has only {shared / 2**20:,.0f} MiB: give a container more with --shm-size=1g"
        findings.append(PreflightFinding("warning", text))
    return sorted(findings, key=lambda finding: finding.kind != "problem")


def gpus_without_torch_build(gpus: Sequence[machine.Gpu]) -> list[PreflightFinding]:
    """Return a warning if there are GPUs and a torch that was built without them: it trains on the CPU."""
    if not gpus or machine.torch_build() != "cpu":
        return []
    text = (
        f"torch was built for the CPU only and cannot use the GPUs here ({len(gpus)} × {gpus[0].name}): this run uses "
        "the CPU, over gloo. To use the GPUs, install a CUDA build of torch"
    )
    return [PreflightFinding("warning", text)]


def _check_processes(nproc: int, gpus: Sequence[machine.Gpu], is_script: bool) -> Iterator[PreflightFinding]:
    if gpus and nproc > len(gpus):
        text = f"{plural(nproc, 'rank')} on {plural(len(gpus), 'GPU')}: NCCL refuses two ranks on one; "
        if is_script:
            text += f"a script that uses NCCL needs --nproc {len(gpus)}; a script that uses gloo does not"
            yield PreflightFinding("warning", text)
        else:
            yield PreflightFinding("problem", text + f"use --nproc {len(gpus)}")
    elif len({gpu.name for gpu in gpus[:nproc]}) > 1:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        order = "CUDA numbers them as nvidia-smi does only with CUDA_DEVICE_ORDER=PCI_BUS_ID"
        yield PreflightFinding("warning", f"the GPUs differ ({names}): every step waits for the slowest. {order}")
    elif not gpus and nproc > machine.cores():
        text = f"{nproc} ranks share {machine.cores()} CPU cores, without a GPU: they slow one another down"
        yield PreflightFinding("warning", text)


def _check_endpoint(nnodes: int, endpoint: str | None) -> Iterator[PreflightFinding]:
    if nnodes == 1:
        return
    host, _, port = (endpoint or "").rpartition(":")
    if not host or not port.isdigit():
        text = f"{nnodes} nodes need --rdzv-endpoint HOST:PORT of one of them, the same on all"
        yield PreflightFinding("problem", text)
        return
    try:
        socket.getaddrinfo(host, int(port))
    except OSError:
        text = f"the host {host} of --rdzv-endpoint has no known address: use its IP address, or add it to /etc/hosts"
        yield PreflightFinding("problem", text)


def check_peers(command: Sequence[str] | None = None, seconds: float = PEER_SECONDS) -> list[PreflightFinding]:
    """Send a message between every two GPUs that this process sees, there and back; return which do not arrive.

    Nothing is tested if ``NCCL_P2P_DISABLE`` is set, since NCCL then sends no such messages. ``command`` sends them, by
    default `PEER_PROBE`, and prints a line for each pair; it is ended after ``seconds``. It is one process that copies.
    NCCL's kernels write into the memory of other processes, which may fail although all copies arrive.
    """
    if os.environ.get("NCCL_P2P_DISABLE", "0") != "0":
        return []
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    probe = run_probe(command or PEER_PROBE, seconds, os.environ | {"PYTHONPATH": path})
    lines = [line.split() for line in probe.output.splitlines()]
    problem = warning = ""
    if wrong := ", ".join(f"{first}–{second}" for first, second, *result in lines if result == ["wrong"]):
        problem = f"messages between GPUs {wrong} arrive with different bits: {PEER_REMEDY}"
    elif probe.status is None and lines and len(lines[-1]) == 2:
        problem = f"a message between GPUs {'–'.join(lines[-1])} has not arrived within {seconds:g} s: {PEER_REMEDY}"
    elif probe.status is None:
        warning = f"messages between the GPUs were not tested: torch was not ready within {seconds:g} s"
    elif probe.error:
        warning = f"messages between the GPUs could not be tested: {probe.error}"
    if problem:
        return [PreflightFinding("problem", problem)]
    return [PreflightFinding("warning", warning)] if warning else []
