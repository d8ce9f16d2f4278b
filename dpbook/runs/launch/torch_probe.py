"""Probes of torch on this machine, run in a process of their own, which can be ended when torch crashes or hangs.

``python -m dpbook.runs.launch.torch_probe`` prints what torch can do as one line of JSON. With the argument ``peers``
it sends messages between all pairs of accelerators.
"""

import json
import sys
import tempfile
from itertools import combinations

import torch
import torch.distributed as dist

MESSAGE_ELEMENTS = 2**20
"""Elements of a message between accelerators, int32: 4 MiB."""


def report_capabilities() -> None:
    """Print what torch can do here, as one line of JSON."""
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    has_nccl = dist.is_available() and dist.is_nccl_available()
    report = {
        "cuda": torch.version.cuda,
        "gpus": [{"name": p.name, "memory": p.total_memory} for p in properties],
        "gloo": _try_gloo(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
    }
    print(json.dumps(report))


def _try_gloo() -> str:
    """Run an all-reduce in one process; return "" if gloo is built in and finds a network interface, else the error."""
    if not (dist.is_available() and dist.is_gloo_available()):
        return "not in this torch"
    with tempfile.TemporaryDirectory() as folder:
        try:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            ones = torch.ones(3)
            dist.all_reduce(ones)
            dist.destroy_process_group()
        except Exception as error:  # whatever torch raises is the diagnosis
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return "" if ones.sum().item() == 3 else f"all-reduce of ones over one process gave {ones.tolist()}"


def report_peers() -> None:
    """Print a line for each pair of accelerators: their indices before the messages are sent, then the result."""
    kind = torch.accelerator.current_accelerator()
    devices = [torch.device(kind, index) for index in range(torch.accelerator.device_count())] if kind else []
    for first, second in combinations(devices, 2):
        print(first.index, second.index, end=" ", flush=True)
        print("right" if comes_back(first, second) else "wrong", flush=True)


def comes_back(first: torch.device, second: torch.device) -> bool:
    """Return True if a message from one device to the other and back arrives unchanged."""
    message = torch.randint(1, 2**31 - 1, (MESSAGE_ELEMENTS,), dtype=torch.int32)  # no memory holds it by chance
    returned = copy_to(copy_to(message.to(first), second), first)
    return bool(torch.equal(returned.cpu(), message))


def copy_to(message: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a message to ``device``, into memory set to zero: a lost message must not find its bits there."""
    return torch.zeros_like(message, device=device).copy_(message)


if __name__ == "__main__":
    if sys.argv[1:] == ["peers"]:
        report_peers()
    else:
        report_capabilities()
