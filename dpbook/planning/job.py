"""Jobs: the model that is trained, its gradients in buckets, and the memory per rank, with plain replicas and ZeRO.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(2020), section 3 and figure 1.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import Any, Literal, get_args

import numpy as np

from dpbook.core import InvalidArgument, check_float, check_int, check_one_of, check_type
from dpbook.overlap import CAP, FIRST_CAP, Plan, plan
from dpbook.planning.cluster import Algorithm, Price
from dpbook.planning.transformer_models import Transformer, operations_per_token

STAGES = (0, 1, 2, 3)
"""ZeRO's stages. They shard: 0 nothing (plain data parallelism), 1 optimizer state, 2 gradients too, 3 weights too."""


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter of a training recipe; ``optimizer`` is the state of the update, master weights included.

    ``copies`` are of the weights in lower precision, which autograd keeps from forward to backward.
    """

    name: str
    weights: int
    gradients: int
    optimizer: int
    copies: int = 0

    @property
    def total(self) -> int:
        """Bytes per trained parameter."""
        return self.weights + self.gradients + self.optimizer + self.copies


RECIPES: dict[str, Recipe] = {
    "mixed": Recipe("bf16 weights and gradients; fp32 master weights and two Adam moments", 2, 2, 12),
    "fp32 gradients": Recipe("bf16 weights; fp32 gradients, master weights and two Adam moments", 2, 4, 12),
    "fp32": Recipe("fp32 weights, gradients and two Adam moments", 4, 4, 8),
    "autocast": Recipe("fp32 weights, gradients and two Adam moments; a bf16 copy of each matrix", 4, 4, 8, 2),
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
    copies: float = 0.0

    @property
    def total(self) -> float:
        """Total bytes."""
        return self.weights + self.gradients + self.optimizer + self.buckets + self.activations + self.copies

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
    added unchanged. No stage shards a recipe's ``copies``: FSDP's autograd keeps those of all gathered weights, too,
    unless layers are recomputed. Fragmentation, temporary buffers and the framework are left out. Raises
    `InvalidArgument`.
    """
    check_int("world", world, 1)
    check_int("stage", stage, STAGES[0], STAGES[-1])
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
        copies=use.copies * parameters,
    )


def smallest_world_that_fits(
    parameters: int, capacity: float, stage: int, recipe: str | Recipe = "mixed", *, activations: float = 0
) -> int | None:
    """Return the fewest ranks of ``capacity`` bytes that hold the model under ``stage``; None if no number does.

    State that is not sharded stays on every rank, so under stage 0 the answer is 1 or None: more ranks never help.
    """
    available = check_float("capacity", capacity, above=0) - check_float("activations", activations, minimum=0)
    check_int("stage", stage, STAGES[0], STAGES[-1])
    use = _recipe(recipe)
    per_parameter = (use.optimizer, use.gradients, use.weights)  # in the order in which the stages shard them
    sharded = sum(per_parameter[:stage]) * check_int("parameters", parameters, 1)
    for_shards = available - (sum(per_parameter[stage:]) + use.copies) * parameters
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
    check_int("stage", stage, STAGES[0], STAGES[-1])
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


def _recipe(recipe: str | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise InvalidArgument("recipe", recipe, f"a Recipe or one of {', '.join(RECIPES)}")
    return RECIPES[recipe]


Window = Literal["none", "backward", "all"]
"""Computation that may hide communication. "none": nothing. "backward", the usual case: gradients hide behind backward,
and ZeRO-3's weights behind the units that use them. "all": forward hides communication too. For plain data parallelism
that is more than DDP can do; for the new weights of ZeRO-1 and 2 Megatron's ``--overlap-param-gather`` does it."""

DTYPES = {1: "uint8", 2: "bfloat16", 4: "float32"}
"""Dtypes of gradients in buckets, by their bytes on the wire."""


@dataclass(frozen=True)
class Job:
    """A model to train, and the synchronisation of its gradients. `Job.of` makes the buckets of a model's tensors.

    Attributes:
        context: tokens in a sequence.
        trained: parameters with gradients; default: all. With fewer, backward computes less too: 2 operations per
            parameter and token, and 2 more per trained one.
        active: parameters that a token passes through; default: all. A mixture of experts has fewer.
        itemsize: bytes of a gradient on the wire: 2 in bf16, 4 in fp32.
        cap: bytes of a bucket if there is no ``plan``. Buckets are then equal, as if tensors could be cut anywhere.
        plan: plan of the buckets, with gradients of ``itemsize`` bytes; it replaces ``cap``.
        algorithm: algorithm of the all-reduce. ZeRO's reduce-scatter and all-gather use rings.
        window: computation that may hide communication.
        stage: ZeRO stage, 0 to 3. Stages 2 and 3 communicate in every micro-batch.
        hybrid: with stage 3, shards inside a node and replicas across (HSDP).
        prefetch: number of units whose weights stage 3 gathers ahead of the one that computes; a unit is a bucket.
        cut: number of GPUs that share one copy of the model, by tensor or pipeline parallelism.
        recompute: whether backward recomputes all activations, which takes as long as forward.
        stages: pipeline stages of a copy. They idle for (stages − 1) / (chunks · accumulation) of the computation.
        chunks: chunks of layers on each stage (interleaved 1F1B; Narayanan et al., 2021). With more than one the
            gradients of a stage become final earlier than in its last micro-batch, see `spread`.
    """

    parameters: int
    context: int = 4096
    trained: int | None = None
    active: int | None = None
    itemsize: int = 2
    cap: float = CAP
    plan: Plan | None = None
    algorithm: Algorithm = "Ring"
    window: Window = "backward"
    accumulation: int = 1
    stage: int = 0
    hybrid: bool = False
    prefetch: int = 1
    cut: int = 1
    recompute: bool = False
    stages: int = 1
    chunks: int = 1

    def __post_init__(self) -> None:
        parameters = check_int("parameters", self.parameters, 1)
        for name in ("context", "itemsize", "accumulation", "cut", "stages", "chunks"):
            check_int(name, getattr(self, name), 1)
        check_int("prefetch", self.prefetch, 0)
        check_float("cap", self.cap, above=0)
        for name in ("trained", "active"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1, parameters)
        check_int("stage", self.stage, STAGES[0], STAGES[-1])
        for name, kind in (("algorithm", Algorithm), ("window", Window)):
            check_one_of(name, getattr(self, name), get_args(kind))
        if self.stage and self.algorithm != "Ring":
            raise InvalidArgument("algorithm", self.algorithm, "Ring with ZeRO: trees serve the all-reduce alone")
        if self.hybrid and self.stage != 3:
            raise InvalidArgument("hybrid", self.hybrid, "False except in stage 3")
        if self.cut % self.stages:
            raise InvalidArgument("stages", self.stages, f"a divisor of the cut, {self.cut}")
        if self.chunks > 1 and (self.stages == 1 or self.accumulation % self.stages or self.stage > 1):
            wanted = "1, except with two or more stages that divide the micro-batches, and ZeRO's stage 0 or 1"
            raise InvalidArgument("chunks", self.chunks, wanted)
        if self.plan is not None and self.cut > 1:
            raise InvalidArgument("plan", self.plan, "None with a cut, which changes the tensors of a rank")
        if self.plan is not None and self.plan.total_bytes != self.wire_bytes:
            raise InvalidArgument("plan", self.plan, f"of {self.wire_bytes:,} bytes, those of the gradients")

    @classmethod
    def of(cls, model: Transformer, cap: int = CAP, first: int | None = FIRST_CAP, **options: Any) -> "Job":
        """Return the job of a model whose gradients travel in DDP's buckets, so that no tensor is ever split.

        With a ``cut`` the tensors of a rank differ from the model's, and buckets are equal.
        """
        check_type("model", model, Transformer, "a Transformer, such as those in MODELS")
        options = {"context": model.context, "itemsize": 2} | options
        check_one_of("itemsize", options["itemsize"], DTYPES)
        if options.get("cut", 1) > 1:
            return cls(model.parameters, cap=cap, **options)
        return cls(model.parameters, plan=plan(model.tensors(DTYPES[options["itemsize"]]), cap, first), **options)

    @property
    def synced(self) -> int:
        """Number of gradients that are synced, over all parts of the model."""
        return self.parameters if self.trained is None else self.trained

    @property
    def wire_bytes(self) -> int:
        """Bytes of gradients that a step syncs: the payload, before any algorithm multiplies it."""
        return self.synced * self.itemsize

    @property
    def spread(self) -> float:
        """Time in which a stage's gradients become final, over the time of one micro-batch's backward.

        The last micro-batches, one for each of p stages, pass through chunk v, then through chunk v − 1, and so on. So
        a stage's chunks become final p/v backwards apart: 1 + (p − 1)(v − 1)/v in all, counted from the first gradient
        of the last chunk. The first stage is meant, which ends last. The first forward passes spread alike.
        """
        return 1 + (self.stages - 1) * (self.chunks - 1) / self.chunks

    @property
    def calls(self) -> int:
        """Number of buckets of a sync."""
        return self.plan.calls if self.plan else max(1, ceil(self.wire_bytes / self.cut / self.cap))

    def operations(self, tokens: float) -> tuple[float, float]:
        """Return the operations of forward and of backward for ``tokens``, without attention scores."""
        active = self.parameters if self.active is None else self.active
        forward, backward = operations_per_token(active, active * self.synced / self.parameters)
        return forward * tokens, (backward + forward * self.recompute) * tokens

    def sync(self, price: Price, hiding: float) -> tuple[float, float]:
        """Return the seconds of all calls, and the seconds that remain after ``hiding`` seconds of computation.

        Buckets become ready in proportion to their bytes, and are sent one by one.
        """
        if self.plan is None:
            calls = self.calls
            call = price(self.wire_bytes / self.cut / calls)
            return calls * call, max(hiding / calls + (calls - 1) * call, hiding) + call - hiding
        sizes, counts = self._sizes
        seconds = np.array([price(nbytes) for nbytes in sizes.tolist()])[counts]
        ready = hiding * np.cumsum(self.plan.nbytes) / self.plan.total_bytes
        last = np.max(ready + np.cumsum(seconds[::-1])[::-1])
        return float(seconds.sum()), float(last - hiding)

    @cached_property
    def _sizes(self) -> Any:
        """Distinct sizes of buckets, and the index of each bucket's size; there are few, so that few are priced."""
        assert self.plan is not None
        return np.unique(self.plan.nbytes, return_inverse=True)
