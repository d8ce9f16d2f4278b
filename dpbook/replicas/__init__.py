"""The data-parallel loop in NumPy: models, data, optimizers, the four phases, and how exact they are."""

from dpbook.replicas.accumulation import (
    Group,
    Leftover,
    Turn,
    accumulate,
    accumulated_gradients,
    accumulation_for,
    effective_batch,
    groups,
)
from dpbook.replicas.array import Array
from dpbook.replicas.data import TRAINING_IMAGES, digits, split, synthetic_task
from dpbook.replicas.exactness.rounded import Rounded, gradient_bound
from dpbook.replicas.exactness.rounding import gamma, rounding_bound, unit_roundoff
from dpbook.replicas.exactness.verdict import Drift, Exactness, compare, drift, ulp_distance
from dpbook.replicas.feeding.feeds import Feed, feed
from dpbook.replicas.feeding.sampler import (
    Sampler,
    contiguous,
    drop,
    expected_distinct,
    keep,
    pad,
    permutation,
    strided,
)
from dpbook.replicas.feeding.weighting import Means, both_means, rank_weights, tokens_per_rank
from dpbook.replicas.learning_rate import (
    LearningRate,
    adam_scaling,
    efficient_lr,
    linear_scaling,
    square_root_scaling,
    warm_up,
)
from dpbook.replicas.loop import average, local_gradients, shard, update
from dpbook.replicas.losses import Loss, cross_entropy, squared_error
from dpbook.replicas.method import Cluster, Exact, Method, Step
from dpbook.replicas.missing_division import adam_scale_effect, undivided
from dpbook.replicas.models import MLP, Linear, Model, Network, accuracy
from dpbook.replicas.optim import SGD, Adam, Momentum, Optimizer
from dpbook.replicas.run import Run
from dpbook.replicas.training import METERS, train, train_on
