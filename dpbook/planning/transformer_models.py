"""Transformer models by their shapes: parameters, tensors, operations per token and model FLOPs utilisation (MFU)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.overlap import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of all parameter tensors by name, in the model's order."""


@dataclass(frozen=True)
class Transformer:
    """A decoder of the Llama family: grouped-query attention, gated MLP, RMS norms, no biases.

    ``head`` is the width of one attention head. ``tied`` shares the embedding with the output layer. ``qk_norm`` adds
    a norm to queries and keys. ``context`` is the length of a training sequence in tokens.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    context: int
    source: str
    tied: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head", "mlp", "vocabulary", "context"):
            check_int(name, getattr(self, name), 1)

    def linears(self) -> dict[str, tuple[int, int]]:
        """Return the linear layers of one block, as (outputs, inputs) by name; adapters are attached to these."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        return {
            "attention.query": (queries, self.hidden),
            "attention.key": (keys, self.hidden),
            "attention.value": (keys, self.hidden),
            "attention.output": (self.hidden, queries),
            "mlp.gate": (self.mlp, self.hidden),
            "mlp.up": (self.mlp, self.hidden),
            "mlp.down": (self.hidden, self.mlp),
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all parameter tensors by name, in the order of the forward pass."""
        norms = {"attention.norm": self.hidden, "mlp.norm": self.hidden}
        if self.qk_norm:
            norms |= {"attention.query_norm": self.head, "attention.key_norm": self.head}
        block: dict[str, tuple[int, ...]] = {**self.linears(), **{name: (width,) for name, width in norms.items()}}
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
        shapes["norm"] = (self.hidden,)
        return shapes if self.tied else {**shapes, "output": (self.vocabulary, self.hidden)}

    def tensors(self, dtype: str = "bfloat16") -> tuple[Tensor, ...]:
        """Return the specifications of its gradients, from which `overlap.plan` makes buckets."""
        return tuple(Tensor(name, shape, dtype) for name, shape in self.shapes().items())

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return count_parameters(self.shapes())

    def __repr__(self) -> str:
        return f"{self.name}: {self.parameters:,} parameters in {len(self.shapes())} tensors"


def count_parameters(shapes: Shapes) -> int:
    """Return the number of parameters of tensors with these shapes."""
    return sum(prod(shape) for shape in shapes.values())


def low_rank_adapters(
    model: Transformer, rank: int, targets: Iterable[str] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of LoRA adapters of ``rank`` on the linear layers ``targets`` (default: all) of each block.

    A linear layer of (outputs, inputs) gets two trainable matrices, (rank, inputs) and (outputs, rank), and is itself
    frozen: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021). Raises `InvalidArgument`.
    """
    check_int("rank", rank, 1)
    linears = model.linears()
    chosen = list(linears if targets is None else targets)
    unknown = [name for name in chosen if name not in linears]
    if unknown or not chosen:
        raise InvalidArgument("targets", chosen, f"one or more of {', '.join(linears)}")
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(model.layers):
        for name in chosen:
            outputs, inputs = linears[name]
            shapes[f"layers.{layer}.{name}.down"] = (rank, inputs)
            shapes[f"layers.{layer}.{name}.up"] = (outputs, rank)
    return shapes


MODELS: dict[str, Transformer] = {
    model.name: model
    for model in (
        Transformer(
            "Llama-2 7B", 32, 4096, 32, 32, 128, 11008, 32000, 4096,
            "Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, 2023",
        ),
        Transformer(
            "Llama-2 70B", 80, 8192, 64, 8, 128, 28672, 32000, 4096,
            "Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, 2023",
        ),
        Transformer(
            "Qwen3 4B", 36, 2560, 32, 8, 128, 9728, 151936, 4096,
            "Qwen Team, Qwen3 Technical Report, 2025, and the published configuration", tied=True, qk_norm=True,
        ),
    )
}  # fmt: skip
"""Published models by name. ``context`` is 4,096 tokens for all, as in their first stage of training."""


def operations_per_token(
    weights: float, trained: float | None = None, *, layers: int = 0, width: int = 0, context: int = 0
) -> tuple[float, float]:
    """Return the operations of forward and of backward of a transformer per token, without recomputation.

    Forward takes 2 operations for each of the ``weights`` of its matrices. Backward takes 2 for the gradient of the
    inputs, and 2 more for each ``trained`` weight (default: all). Attention scores and the values they mix take
    12 · ``layers`` · ``width`` · ``context``, a third of it in forward. That counts the whole square, although a causal
    mask leaves out half of it; with the default of 0 they are not counted. Source: Chowdhery et al., "PaLM: Scaling
    Language Modeling with Pathways" (2022), appendix B.
    """
    scores = 4.0 * layers * width * context
    return 2 * weights + scores, 2 * weights + 2 * (weights if trained is None else trained) + 2 * scores


def utilisation(tokens_per_second: float, operations: float, peak: float) -> float:
    """Return the model FLOPs utilisation (MFU), the share of ``peak`` that a training run reaches.

    ``operations`` are those per token, as `operations_per_token` counts them; ``peak`` those per second of all devices
    together, in the precision of the matrix products.
    """
    return tokens_per_second * operations / check_float("peak", peak, above=0)
