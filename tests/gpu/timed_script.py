"""Train with torch's DDP as a user would, and write the seconds of the updates by the script's own events.

timed_script.py WIDTH UPDATES FILE
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook.ranks import own_device

WARMUP = 3
"""First updates, which a report leaves out."""


def main(width, updates, file):
    device, backends = own_device()
    torch.accelerator.set_device_index(device)
    dist.init_process_group(backends, device_id=device)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    events = []
    for _ in range(updates):
        model(torch.ones(width, width, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        event = torch.Event(device, enable_timing=True)
        event.record()
        events.append(event)
    torch.accelerator.synchronize()
    seconds = 1e-3 * events[WARMUP - 1].elapsed_time(events[-1])
    if dist.get_rank() == 0:
        with open(file, "w") as output:
            json.dump(seconds, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
