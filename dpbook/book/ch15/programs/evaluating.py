import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

rank, world = join()
train, test = torch.utils.data.random_split(points(90), [60, 30], torch.Generator().manual_seed(1))
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=4, sampler=sampler)
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
rights = torch.zeros(2)
for x, y in DataLoader(test, batch_size=4, sampler=DistributedSampler(test, shuffle=False)):
    rights += torch.tensor([(model.module(x).argmax(1) == y).sum(), len(y)])
dist.all_reduce(rights)
right, world = rights
if rank == 0:
    print(f"accuracy {right / world:.4f}")
