"""Models by their shapes: how many parameters, in which tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from dpbook.core import InvalidArgument, check_int
from dpbook.overlap import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of every parameter tensor by its name, in the model's order."""


@dataclass(frozen=True)
class Transformer:
    """A decoder of the Llama family: grouped-query attention, gated MLP, RMS norms, no biases.

    ``head`` is the width of one attention head; ``tied`` shares the embedding with the output layer; ``qk_norm`` adds
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
        """The linear layers of one block, each (outputs, inputs): what adapters are put on."""
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
        """The shape of every parameter tensor by its name, in the order of the forward pass."""
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
        """Its gradients, for a plan of buckets: `overlap.plan`."""
        return tuple(Tensor(name, shape, dtype) for name, shape in self.shapes().items())

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return count_parameters(self.shapes())

    def __repr__(self) -> str:
        return f"{self.name}: {self.parameters:,} parameters in {len(self.shapes())} tensors"


def count_parameters(shapes: Shapes) -> int:
    """The number of parameters of tensors with these shapes."""
    return sum(prod(shape) for shape in shapes.values())


def low_rank_adapters(
    model: Transformer, rank: int, targets: Iterable[str] | None = None
) -> dict[str, tuple[int, ...]]:
    """The shapes of LoRA adapters of ``rank`` on the linear layers named by ``targets`` (default: all) of each block.

    A linear layer of (outputs, inputs) gets two trainable matrices, (rank, inputs) and (outputs, rank), and is frozen
    itself: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021). Raises `InvalidArgument`.
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
