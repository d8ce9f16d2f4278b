"""Jobs: the model that is trained, and the synchronisation of its gradients in buckets."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, Literal, get_args

import numpy as np

from dpbook.core import InvalidArgument, check_float, check_int, check_one_of, check_type
from dpbook.overlap import CAP, FIRST_CAP, Plan, plan
from dpbook.planning.collective_prices import Algorithm, Price
from dpbook.planning.rank_memory import STAGES
from dpbook.planning.transformer_models import Transformer, operations_per_token

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
        parameters: number of parameters of the model.
        context: tokens in a sequence.
        trained: parameters with gradients; default: all. With fewer, backward computes less too: 2 operations per
            parameter and token, and 2 more per trained one.
        active: parameters that a token passes through; default: all. A mixture of experts has fewer.
        itemsize: bytes of a gradient on the wire: 2 in bf16, 4 in fp32.
        cap: bytes of a bucket if there is no ``plan``. Buckets are then equal, as if tensors could be cut anywhere.
        plan: plan of the buckets, with gradients of ``itemsize`` bytes; it replaces ``cap``.
        algorithm: algorithm of the all-reduce. ZeRO's reduce-scatter and all-gather use rings.
        window: computation that may hide communication.
        accumulation: micro-batches in a step.
        stage: ZeRO stage, 0 to 3. Stages 2 and 3 communicate in every micro-batch.
        hybrid: with stage 3, shards inside a node and replicas across (HSDP).
        prefetch: number of units whose weights stage 3 gathers ahead of the one that computes; a unit is a bucket.
        cut: number of GPUs that share one copy of the model, by tensor or pipeline parallelism.
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

    def __post_init__(self) -> None:
        parameters = check_int("parameters", self.parameters, 1)
        for name in ("context", "itemsize", "accumulation", "cut"):
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
    def calls(self) -> int:
        """Number of buckets of a sync."""
        return self.plan.calls if self.plan else max(1, ceil(self.wire_bytes / self.cut / self.cap))

    def operations(self, tokens: float) -> tuple[float, float]:
        """Return the operations of forward and of backward for ``tokens``, without attention scores."""
        active = self.parameters if self.active is None else self.active
        forward, backward = operations_per_token(active, active * self.synced / self.parameters)
        return forward * tokens, backward * tokens

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
