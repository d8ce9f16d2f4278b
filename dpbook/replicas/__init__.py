"""The data-parallel loop in NumPy: models, data, optimizers, the four phases, and how exact they are."""

from dpbook.replicas.accumulation import (
    Group,
    Turn,
    accumulate,
    accumulated_gradients,
    accumulation_for,
    effective_batch,
    groups,
)
from dpbook.replicas.agreement import Agreement, agreement, in_own_order
from dpbook.replicas.batch_norm import BatchNorm
from dpbook.replicas.contrastive import Contrastive
from dpbook.replicas.coupled import Coupled, synchronised_gradients
from dpbook.replicas.data import digits, split, synthetic_task
from dpbook.replicas.exactness import Drift, Exactness, compare, drift, ulp_distance
from dpbook.replicas.feeding import Feed, feed
from dpbook.replicas.learning_rate import (
    LearningRate,
    adam_scaling,
    efficient_lr,
    linear_scaling,
    square_root_scaling,
    warm_up,
)
from dpbook.replicas.loop import average, local_gradients, shard, update
from dpbook.replicas.losses import batch_maximum_cross_entropy, cross_entropy, squared_error
from dpbook.replicas.missing_division import adam_scale_effect, undivided
from dpbook.replicas.models import MLP, Linear, Model, Network, accuracy
from dpbook.replicas.noise_scale import NoiseScale, example_gradients, noise_scale, smooth, variance_by_batch
from dpbook.replicas.optim import SGD, Adam, Momentum, Optimizer
from dpbook.replicas.rounded import Rounded, gradient_bound
from dpbook.replicas.rounding import BFLOAT16_UNIT, gamma, rounding_bound, to_bfloat16, unit_roundoff
from dpbook.replicas.run import Run
from dpbook.replicas.sampler import Sampler, contiguous, drop, expected_distinct, keep, pad, permutation, strided
from dpbook.replicas.training import train, train_on
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
    "Feed",
    "Group",
    "LearningRate",
    "Linear",
    "Means",
    "Model",
    "Momentum",
    "Network",
    "NoiseScale",
    "Optimizer",
    "Rounded",
    "Run",
    "Sampler",
    "Turn",
    "accumulate",
    "accumulated_gradients",
    "accumulation_for",
    "accuracy",
    "adam_scale_effect",
    "adam_scaling",
    "agreement",
    "average",
    "batch_maximum_cross_entropy",
    "both_means",
    "compare",
    "contiguous",
    "cross_entropy",
    "digits",
    "drift",
    "drop",
    "effective_batch",
    "efficient_lr",
    "example_gradients",
    "expected_distinct",
    "feed",
    "gamma",
    "gradient_bound",
    "groups",
    "in_own_order",
    "keep",
    "linear_scaling",
    "local_gradients",
    "noise_scale",
    "pad",
    "permutation",
    "rank_weights",
    "rounding_bound",
    "shard",
    "smooth",
    "split",
    "square_root_scaling",
    "squared_error",
    "strided",
    "synchronised_gradients",
    "synthetic_task",
    "to_bfloat16",
    "tokens_per_rank",
    "train",
    "train_on",
    "ulp_distance",
    "undivided",
    "unit_roundoff",
    "update",
    "variance_by_batch",
    "warm_up",
]
