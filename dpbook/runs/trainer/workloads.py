"""Models and examples of the training program: a small GPT on bytes, and a CNN on handwritten digits.

The examples of a step depend on seed, step and rank alone, so that resuming does not change them.
"""

import gzip
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dpbook.core import DATA, InvalidArgument
from dpbook.planning import operations_per_token
from dpbook.replicas import Sampler, digits, drop, split
from dpbook.runs.trainer.options import Options

Batch = tuple[torch.Tensor, torch.Tensor]
IntArray = NDArray[np.int64]


class Text:
    """Sequences of ``tokens`` bytes of the packaged text; a sequence begins at every byte."""

    def __init__(self, tokens: int) -> None:
        packed = (DATA / "text" / "jargon.txt.gz").read_bytes()
        self.bytes = np.frombuffer(gzip.decompress(packed), np.uint8)
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.bytes) - self.tokens

    def examples(self, places: IntArray) -> Batch:
        """Return the sequences that begin at ``places``, and the targets: the same sequences one byte later."""
        rows = torch.from_numpy(self.bytes[places[:, None] + np.arange(self.tokens + 1)].astype(np.int64))
        return rows[:, :-1], rows[:, 1:]


class Digits:
    """Training digits, of one token each."""

    tokens = 1

    def __init__(self) -> None:
        (images, labels), _ = split(*digits(np.float32))
        self.images = torch.from_numpy(images.reshape(-1, 1, 8, 8))
        self.labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def examples(self, places: IntArray) -> Batch:
        return self.images[places], self.labels[places]


class Batches:
    """Micro-batches of this rank in any step, as the book's `Sampler` divides the examples.

    A global batch is the same for any number of ranks; an incomplete one at the end of an epoch is dropped. Raises
    `InvalidArgument` if the data have fewer examples than a global batch.
    """

    def __init__(self, source: Text | Digits, options: Options, rank: int, world: int) -> None:
        self.source, self.accumulation = source, options.accumulation
        self.share = options.batch * options.accumulation
        self.steps = len(source) // (world * self.share)
        if not self.steps:
            expected = f"at most the {len(source)} examples of the data: fewer ranks, or a smaller --batch"
            raise InvalidArgument("global batch", world * self.share, expected)
        self.sampler = Sampler(len(source), world, rank, seed=options.seed, fit=drop)
        self.indices = self.sampler.indices()

    def __call__(self, step: int) -> Iterator[Batch]:
        """Yield the micro-batches of ``step``, counted from 0."""
        epoch, index = divmod(step, self.steps)
        if epoch != self.sampler.epoch:
            self.sampler.set_epoch(epoch)
            self.indices = self.sampler.indices()
        places = self.indices[index * self.share : (index + 1) * self.share]
        return map(self.source.examples, np.split(places, self.accumulation))


class PrefetchedBatches:
    """The same micro-batches, prepared by a thread during the previous step.

    With ``pinned`` they are in pinned memory, from which a GPU copies asynchronously; a copy from other memory would
    wait for all queued work.
    """

    def __init__(self, batches: Callable[[int], Iterator[Batch]], *, pinned: bool) -> None:
        self.batches, self.pinned = batches, pinned
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def __call__(self, step: int) -> Iterator[Batch]:
        """Return the micro-batches of ``step``, and start to prepare those of the next step."""
        prepared, ready = self._next or (None, None)
        if ready is None or prepared != step:
            ready = self._thread.submit(self._make, step)
        batches = ready.result()
        self._next = step + 1, self._thread.submit(self._make, step + 1)
        return iter(batches)

    def _make(self, step: int) -> list[Batch]:
        batches = list(self.batches(step))
        return [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in batches] if self.pinned else batches


VOCABULARY = 256
HEAD = 32


class Block(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Causal attention and an MLP, each after a norm and with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, HEAD).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):  # type: ignore[misc]
    """Predicts the next byte; the output layer is tied to the embedding. Returns the mean loss of a batch of tokens."""

    def __init__(self, width: int, depth: int, context: int, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        self.apply(_initialise)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(inputs) + self.position(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute and self.training else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class CNN(nn.Module):  # type: ignore[misc]
    """Two convolutions and two linear layers on 8 × 8 images. Returns the mean loss of a batch."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.classify = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
        self.recompute = recompute

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.features, images, use_reentrant=False) if self.recompute else self.features(images)
        return F.cross_entropy(self.classify(x).float(), labels)


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen linear layer and a trained low-rank change of it: W x + B A x, with B = 0 in the beginning.

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
    """

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.up(self.down(x))


def build(options: Options) -> nn.Module:
    """Return the model of ``options``, initialised from their seed."""
    torch.manual_seed(options.seed)
    if options.model == "cnn":
        return CNN(recompute=options.checkpointing)
    model = GPT(options.width, options.depth, options.context, recompute=options.checkpointing)
    if options.lora:
        model.requires_grad_(False)
        for block in model.blocks:
            for name in ("qkv", "out", "up", "down"):
                setattr(block, name, Adapted(getattr(block, name), options.lora))
    return model


def flops_per_token(model: GPT) -> int:
    """Return the operations of forward and backward per token (`dpbook.planning.operations_per_token`)."""
    matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    weights, trained = sum(w.numel() for w in matrices), sum(w.numel() for w in matrices if w.requires_grad)
    context, width = model.position.weight.shape
    return int(sum(operations_per_token(weights, trained, layers=len(model.blocks), width=width, context=context)))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
