import os
import socket

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

taken = socket.create_server(("127.0.0.1", 0)) if os.environ["RANK"] == "0" else None
os.environ["MASTER_PORT"] = str(taken.getsockname()[1]) if taken else "1"
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
rank, world = join(timeout=8)
data = points(96)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
