import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

rank, world = join()
data = points(96)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
CAP = 100
*_, last = model.parameters()
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    bucket = []
    for p in model.parameters():
        bucket.append(p.grad)
        if sum(g.numel() for g in bucket) >= CAP or p is last:
            for g in bucket:
                dist.all_reduce(g)
                g /= world
            bucket = []
    optimizer.step()
