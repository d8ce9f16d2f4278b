"""The data-parallel loop in NumPy: models, data, optimizers, the four phases, and how exact they are."""

from dpbook.replicas.data import digits, split, synthetic_task
from dpbook.replicas.exactness import Drift, Exactness, compare, drift, ulp_distance
from dpbook.replicas.loop import Run, average, local_gradients, shard, train, update
from dpbook.replicas.models import MLP, Linear, Model, accuracy, cross_entropy, squared_error
from dpbook.replicas.optim import SGD, Adam, Momentum, Optimizer

__all__ = [
    "MLP",
    "SGD",
    "Adam",
    "Drift",
    "Exactness",
    "Linear",
    "Model",
    "Momentum",
    "Optimizer",
    "Run",
    "accuracy",
    "average",
    "compare",
    "cross_entropy",
    "digits",
    "drift",
    "local_gradients",
    "shard",
    "split",
    "squared_error",
    "synthetic_task",
    "train",
    "ulp_distance",
    "update",
]
