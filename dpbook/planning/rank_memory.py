"""Memory per rank in training, with plain data parallelism and ZeRO, and the bytes that a rank sends.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(2020), section 3 and figure 1.
"""

from dataclasses import dataclass, fields
from math import ceil

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.planning.transformer_models import Transformer

STAGES = (0, 1, 2, 3)
"""ZeRO's stages. They shard: 0 nothing (plain data parallelism), 1 optimizer state, 2 gradients too, 3 weights too."""


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter of a training recipe; ``optimizer`` is the state of the update, master weights included."""

    name: str
    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes per trained parameter."""
        return self.weights + self.gradients + self.optimizer


RECIPES: dict[str, Recipe] = {
    "mixed": Recipe("bf16 weights and gradients; fp32 master weights and two Adam moments", 2, 2, 12),
    "fp32 gradients": Recipe("bf16 weights; fp32 gradients, master weights and two Adam moments", 2, 4, 12),
    "autocast": Recipe("fp32 weights, gradients and two Adam moments; bf16 only inside operations", 4, 4, 8),
    "bf16": Recipe("bf16 weights, gradients and two Adam moments", 2, 2, 4),
    "momentum": Recipe("fp32 weights, gradients and one momentum buffer", 4, 4, 4),
}
"""Training recipes by name; "mixed" is that of the ZeRO paper. "fp32 gradients", 18 bytes, is Megatron's default, which
adds up many micro-batches in fp32."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank, by content."""

    weights: float
    gradients: float
    optimizer: float
    buckets: float = 0.0
    activations: float = 0.0

    @property
    def total(self) -> float:
        """Total bytes."""
        return self.weights + self.gradients + self.optimizer + self.buckets + self.activations

    def __repr__(self) -> str:
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        contents = ", ".join(f"{name} {nbytes / 1e9:,.1f}" for name, nbytes in parts if nbytes)
        return f"{self.total / 1e9:,.1f} GB per rank ({contents})"


def memory_per_rank(
    parameters: int,
    world: int,
    stage: int = 0,
    recipe: str | Recipe = "mixed",
    *,
    trainable: int | None = None,
    bucket_copy: bool = False,
    activations: float = 0,
) -> Memory:
    """Return the bytes that each of ``world`` ranks keeps for a model of ``parameters`` under ZeRO ``stage`` 0–3.

    Only ``trainable`` parameters (default: all) have gradients and optimizer state. ``bucket_copy`` adds the second
    copy of the gradients that DDP keeps unless its gradients are views of the buckets. ``activations`` (bytes) are
    added unchanged. Fragmentation, temporary buffers and the framework are left out. Raises `InvalidArgument`.
    """
    check_int("world", world, 1)
    _check_stage(stage)
    use = _recipe(recipe)
    trained = parameters if trainable is None else check_int("trainable", trainable, 1, parameters)
    check_int("parameters", parameters, 1)
    gradients = use.gradients * trained / (world if stage >= 2 else 1)
    if bucket_copy and stage:
        raise InvalidArgument("bucket_copy", bucket_copy, "False with ZeRO, which keeps no second copy")
    return Memory(
        weights=use.weights * parameters / (world if stage >= 3 else 1),
        gradients=gradients,
        optimizer=use.optimizer * trained / (world if stage >= 1 else 1),
        buckets=gradients if bucket_copy else 0.0,
        activations=check_float("activations", activations, minimum=0),
    )


def smallest_world_that_fits(
    parameters: int, capacity: float, stage: int, recipe: str | Recipe = "mixed", *, activations: float = 0
) -> int | None:
    """Return the fewest ranks of ``capacity`` bytes that hold the model under ``stage``; None if no number does.

    State that is not sharded stays on every rank, so under stage 0 the answer is 1 or None: more ranks never help.
    """
    available = check_float("capacity", capacity, above=0) - check_float("activations", activations, minimum=0)
    _check_stage(stage)
    use = _recipe(recipe)
    per_parameter = (use.optimizer, use.gradients, use.weights)  # in the order in which the stages shard them
    sharded = sum(per_parameter[:stage]) * check_int("parameters", parameters, 1)
    for_shards = available - sum(per_parameter[stage:]) * parameters
    if for_shards < 0 or (for_shards == 0 and sharded):
        return None
    return max(1, ceil(sharded / for_shards)) if sharded else 1


def sent_per_rank(
    parameters: int, world: int, stage: int = 0, itemsize: int = 2, *, weights: int | None = None, accumulation: int = 1
) -> float:
    """Return the bytes that a rank sends in a step of ``accumulation`` micro-batches, by bandwidth-optimal collectives.

    A gradient has ``itemsize`` bytes on the wire and a weight ``weights`` (default: the same). Each collective sends
    (N − 1)/N of the model: a reduce-scatter of the gradients and an all-gather, of gradients in stage 0 and of updated
    weights in 1 and 2. The reduce-scatter is sent once per step in stages 0 and 1, and in every micro-batch in 2 and 3.
    Stage 3 gathers the weights twice in every micro-batch, for forward and for backward.
    """
    _check_stage(stage)
    gradient = check_int("itemsize", itemsize, 1)
    weight = gradient if weights is None or stage == 0 else check_int("weights", weights, 1)
    micro = check_int("accumulation", accumulation, 1)
    per_parameter = (micro if stage >= 2 else 1) * gradient + (2 * micro if stage == 3 else 1) * weight
    return per_parameter * (check_int("world", world, 1) - 1) / world * check_int("parameters", parameters, 1)


def activation_bytes(model: Transformer, tokens: int, *, checkpointing: bool = False) -> int:
    """Return the bytes of activations that backward needs for ``tokens`` per rank, in bf16 with fused attention.

    34 bytes per token, layer and hidden unit, or 2 with ``checkpointing`` of whole layers: Korthikanti et al.,
    "Reducing Activation Recomputation in Large Transformer Models" (2022), without the attention scores, which fused
    attention does not store. The formula was derived for an MLP of four times the hidden width, and is an estimate for
    others.
    """
    return (2 if checkpointing else 34) * check_int("tokens", tokens, 1) * model.hidden * model.layers


def _check_stage(stage: int) -> None:
    check_int("stage", stage, STAGES[0], STAGES[-1])


def _recipe(recipe: str | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise InvalidArgument("recipe", recipe, f"a Recipe or one of {', '.join(RECIPES)}")
    return RECIPES[recipe]
