"""Train with torch's DDP as a user would, and write bounds of the updates' seconds by the script's own events.

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
    before, after = ([torch.Event(device, enable_timing=True) for _ in range(updates)] for _ in range(2))
    for update in range(updates):
        model(torch.ones(width, width, device=device)).square().mean().backward()
        before[update].record()
        optimizer.step()
        after[update].record()
        optimizer.zero_grad()
    torch.accelerator.synchronize()
    first = WARMUP - 1  # an update ends somewhere in the optimizer's step
    seconds = [1e-3 * after[first].elapsed_time(before[-1]), 1e-3 * before[first].elapsed_time(after[-1])]
    if dist.get_rank() == 0:
        with open(file, "w") as output:
            json.dump(seconds, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
