import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

rank, world = join()
data = points(96)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    last = i % 2 == 1
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
