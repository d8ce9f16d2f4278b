"""The data-parallel loop in NumPy: models, data, optimizers, the four phases, and how exact they are."""

from dpbook.replicas.agreement import Agreement, agreement, in_own_order
from dpbook.replicas.batch_norm import BatchNorm
from dpbook.replicas.contrastive import Contrastive
from dpbook.replicas.coupled import Coupled, synchronised_gradients
from dpbook.replicas.data import digits, split, synthetic_task
from dpbook.replicas.exactness import Drift, Exactness, compare, drift, ulp_distance
from dpbook.replicas.loop import Run, average, local_gradients, shard, train, update
from dpbook.replicas.models import (
    MLP,
    Linear,
    Model,
    Network,
    accuracy,
    batch_maximum_cross_entropy,
    cross_entropy,
    squared_error,
)
from dpbook.replicas.optim import SGD, Adam, Momentum, Optimizer
from dpbook.replicas.rounded import Rounded, gradient_bound
from dpbook.replicas.rounding import BFLOAT16_UNIT, gamma, rounding_bound, to_bfloat16, unit_roundoff
from dpbook.replicas.weighting import Means, both_means, rank_weights, tokens_per_rank

__all__ = [
    "BFLOAT16_UNIT",
    "MLP",
    "SGD",
    "Adam",
    "Agreement",
    "BatchNorm",
    "Contrastive",
    "Coupled",
    "Drift",
    "Exactness",
    "Linear",
    "Means",
    "Model",
    "Momentum",
    "Network",
    "Optimizer",
    "Rounded",
    "Run",
    "accuracy",
    "agreement",
    "average",
    "batch_maximum_cross_entropy",
    "both_means",
    "compare",
    "cross_entropy",
    "digits",
    "drift",
    "gamma",
    "gradient_bound",
    "in_own_order",
    "local_gradients",
    "rank_weights",
    "rounding_bound",
    "shard",
    "split",
    "squared_error",
    "synchronised_gradients",
    "synthetic_task",
    "to_bfloat16",
    "tokens_per_rank",
    "train",
    "ulp_distance",
    "unit_roundoff",
    "update",
]
