"""Models of the training program: a small GPT on bytes, and a CNN on handwritten digits."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dpbook.planning import operations_per_token
from dpbook.runs.trainer.options import Options

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
