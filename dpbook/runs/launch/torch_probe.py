"""Report of what torch can do here: ``python -m dpbook.runs.launch.torch_probe``, run by the doctor in a process."""

import json
import tempfile

import torch
import torch.distributed as dist


def main() -> None:
    """Print, as one line of JSON, what torch can do here."""
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
    """All-reduce among one process: proves that gloo is built in and finds a network interface."""
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


if __name__ == "__main__":
    main()
