"""Layers of very different widths, two micro-batches an update, and a cap of its own."""

import contextlib
import itertools
import os

import torch
from torch import distributed, nn, optim

WIDTHS = [256, 1536, 96, 1024, 1024, 48, 512, 20]
MICRO_BATCHES = 2

distributed.init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1234 + rank)
layers = []
for width, following in itertools.pairwise(WIDTHS):
    layers += [nn.Linear(width, following), nn.LayerNorm(following), nn.GELU()]
net = nn.Sequential(*layers[:-2])
net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=2)
adam = optim.Adam(net.parameters(), lr=1e-3)
criterion = nn.MSELoss()

for _ in range(2000):
    for micro_batch in range(MICRO_BATCHES):
        inputs = torch.randn(384, WIDTHS[0])
        targets = inputs[:, : WIDTHS[-1]].sin()
        last = micro_batch == MICRO_BATCHES - 1
        with contextlib.nullcontext() if last else net.no_sync():
            (criterion(net(inputs), targets) / MICRO_BATCHES).backward()
    adam.step()
    adam.zero_grad(set_to_none=True)
