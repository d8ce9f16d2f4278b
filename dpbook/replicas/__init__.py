"""The data-parallel loop in NumPy: models, data, optimizers, the four phases, and how exact they are."""

from dpbook.replicas.accumulation import (
    Leftover,
    MicroBatch,
    UpdateGroup,
    accumulate,
    accumulated_gradients,
    accumulation_for,
    effective_batch,
    groups,
)
from dpbook.replicas.exactness import Drift, Exactness, compare, drift, ulp_distance
from dpbook.replicas.feeding import (
    Feed,
    Means,
    Sampler,
    both_means,
    contiguous,
    drop,
    expected_distinct,
    feed,
    keep,
    pad,
    permutation,
    rank_weights,
    strided,
)
from dpbook.replicas.four_phases import average, local_gradients, shard, undivided, update
from dpbook.replicas.method import Exact, Method, RankGroup, Step
from dpbook.replicas.networks import (
    MLP,
    TRAINING_IMAGES,
    Array,
    Linear,
    Loss,
    Model,
    Network,
    accuracy,
    cross_entropy,
    digits,
    split,
    squared_error,
    synthetic_task,
)
from dpbook.replicas.optimizers import (
    SGD,
    Adam,
    LearningRate,
    Momentum,
    Optimizer,
    adam_scaling,
    efficient_lr,
    linear_scaling,
    square_root_scaling,
    warm_up,
)
from dpbook.replicas.rounding_bounds import Rounded, gamma, gradient_bound, rounding_bound, unit_roundoff
from dpbook.replicas.training import METERS, Run, train, train_on
