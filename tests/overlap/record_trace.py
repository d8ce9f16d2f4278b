"""Record the traces in dpbook/data/traces: torchrun --standalone --nproc-per-node=2 THIS_FILE FOLDER

No test: a measurement, made once. What would name the machine's user, host or folders is taken out of the files.
"""

import datetime
import gzip
import json
import platform
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

DEPTH, WIDTH, BATCH, CAP_MIB, WARM, STEPS = 6, 512, 256, 1, 10, 2


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        rank = dist.get_rank()
        events = record()
        (folder / f"ddp_gloo_rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(events).encode(), 9, mtime=0))
        if rank == 0:
            (folder / "ddp_gloo.json").write_text(json.dumps(provenance(), indent=2) + "\n", encoding="utf-8")
    finally:
        dist.destroy_process_group()


def record():
    torch.manual_seed(dist.get_rank())
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=CAP_MIB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(2, BATCH, WIDTH)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=WARM, active=STEPS),
            on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
            acc_events=True,
        ) as profiler:
            for _ in range(WARM + STEPS):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                profiler.step()
        return trimmed(json.loads(path.read_text()))


def trimmed(trace):
    kept = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
    events = [{key: e[key] for key in kept if key in e} for e in trace["traceEvents"] if e["ph"] == "X"]
    info = {key: trace["distributedInfo"][key] for key in ("backend", "rank", "world_size")}
    about = {key: trace[key] for key in ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds")}
    return {**about, "distributedInfo": info, "traceEvents": events}


def provenance():
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {
        "what": "torch.profiler traces of DistributedDataParallel, one file per rank, on one clock",
        "files": [f"ddp_gloo_rank{rank}.json.gz" for rank in range(dist.get_world_size())],
        "model": f"{DEPTH} × (Linear({WIDTH}, {WIDTH}), ReLU), float32, batch {BATCH} per rank, SGD",
        "bucket_cap_mb": CAP_MIB,
        "steps": f"{STEPS}, after {WARM} that are not in the files; the profiler counts from 0",
        "backend": "gloo on loopback, one torch thread per process",
        "machine": f"{cpu.partition(':')[2].strip()}, 2 cores, shared with other work",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "date": datetime.date.today().isoformat(),
        "changes": "complete events only, with name, category, thread and time; host name and arguments removed",
        "chosen": "the shortest of several recordings: the machine had other work to do in the others",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
