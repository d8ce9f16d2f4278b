"""A small network of convolutions on random pictures, with a loader, as in a classifier's tutorial."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(128 * 8 * 8, 192), nn.ReLU(), nn.Linear(192, 10))

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(3000, 3, 32, 32), torch.randint(0, 10, (3000,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=24, sampler=sampler, drop_last=True)
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(20):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
