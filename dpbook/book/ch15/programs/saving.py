import threading
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

rank, world = join(timeout=5)
data = points(96)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def save():
    time.sleep(20)  # a slow disk
    torch.save(model.module.state_dict(), Path(__file__).with_name("model.pt"))


for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if i == 3 and rank == 0:
        threading.Thread(target=save).start()
