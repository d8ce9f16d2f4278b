"""Toy models and data of the exhibits, so that an exhibit's script holds what a user's script would."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

FEATURES, CLASSES, WORDS, LENGTH = 8, 4, 20, 12


def join(timeout: float = 60.0, seed: int = 0) -> tuple[int, int]:
    """Join the process group over gloo, seed every rank alike, and return this rank's number and the world size.

    A collective fails after ``timeout`` seconds.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    torch.manual_seed(seed)
    return dist.get_rank(), dist.get_world_size()


def points(
    count: int, *, missing: int | None = None, outlier: int | None = None, mislabelled: int | None = None
) -> TensorDataset:
    """Return ``count`` points of 8 numbers, float32, and their classes, 0 to 3, int64: the same on every rank.

    One number of the point ``missing`` is NaN; those of ``outlier`` are a million times as large, beyond
    float16 whatever a model makes of them; the class of ``mislabelled`` is 7, which does not exist.
    """
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(count, FEATURES, generator=generator), torch.randint(CLASSES, (count,), generator=generator)
    if missing is not None:
        x[missing, 3] = torch.nan
    if outlier is not None:
        x[outlier] *= 1e6
    if mislabelled is not None:
        y[mislabelled] = 7
    return TensorDataset(x, y)


def sentences(count: int) -> list[torch.Tensor]:
    """Return ``count`` sentences of 2 to 12 words, 1 to 19, int64, each padded with 0 to length 12."""
    generator = torch.Generator().manual_seed(6)
    lengths = torch.randint(2, LENGTH + 1, (count, 1), generator=generator)
    words = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    return list(words * (torch.arange(LENGTH) < lengths))


def net(hidden: int = 16, middle: nn.Module | None = None) -> nn.Sequential:
    """Return two linear layers, from 8 numbers to 4 classes, and ``middle`` between them (default: ReLU)."""
    return nn.Sequential(nn.Linear(FEATURES, hidden), middle or nn.ReLU(), nn.Linear(hidden, CLASSES))


class LanguageModel(nn.Module):  # type: ignore[misc]  # torch has no types here
    """An embedding and a linear layer, which score the next word of every word."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, hidden), nn.Linear(hidden, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Map words (sentences, words) to scores (sentences, words, 20)."""
        return self.head(self.embed(words))


class TwoTasks(nn.Module):  # type: ignore[misc]
    """A body of one layer and two heads, of which a batch uses one."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, hidden)
        self.first, self.second = nn.Linear(hidden, CLASSES), nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor, second: bool = False) -> torch.Tensor:
        """Map points (points, 8) to scores (points, 4)."""
        return (self.second if second else self.first)(self.body(x).relu())
