import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

rank, world = join()
data = points(96)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
fully_shard(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
