"""Chapter 08: Buckets. Gradients of named models, by name and shape, and of random ones for exercise 08.3."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpbook.collectives import AlphaBeta
from dpbook.core import check_int
from dpbook.overlap import Layer, Plan, Tensor, Timeline, simulate_step


class Model(NamedTuple):
    """Gradients in random order, and the price of a call."""

    ready: list[float]  # seconds from the start of the step until each gradient is complete; equal within a layer
    nbytes: list[int]  # bytes of each gradient
    alpha: float  # seconds of a call without its bytes
    beta: float  # seconds per byte


def sample(layers: int = 12, seed: int = 0) -> Model:
    """Return a random model of so many layers, each with a weight and a bias; equal seeds give equal models.

    Communication takes 0.8 to 1.5 times as long as backward, without latencies. Backward takes as long as 8 to 30
    latencies and twice as long as forward.
    """
    check_int("layers", layers, 1)
    rng = np.random.default_rng(check_int("seed", seed, 0))
    backward = rng.uniform(0.05, 0.2)
    shares = rng.uniform(0.5, 1.5, layers)
    ends = backward / 2 + backward * np.cumsum(shares / shares.sum())
    weights = np.round(1e6 * rng.lognormal(0, 0.7, layers)).astype(int)
    ready, nbytes = np.repeat(ends, 2), np.stack([weights, weights // 500], axis=1).ravel()
    alpha, beta = backward / rng.uniform(8, 30), rng.uniform(0.8, 1.5) * backward / nbytes.sum()
    order = rng.permutation(2 * layers)
    return Model(ready[order].tolist(), nbytes[order].tolist(), float(alpha), float(beta))


def simulate(model: Model, groups: Sequence[Sequence[int]]) -> Timeline:
    """Simulate the step that sends these groups in this order; they hold each gradient once, else `InvalidArgument`."""
    tensors = [Tensor(f"gradient {index}", nbytes, "uint8") for index, nbytes in enumerate(model.nbytes)]
    checked = Plan(tuple(tensors), groups).groups  # type: ignore[arg-type]
    order = sorted(range(len(tensors)), key=lambda index: -model.ready[index])  # layers in the order of forward
    place = {index: k for k, index in enumerate(order)}
    forward = max(model.ready) / 3
    before = [*(model.ready[index] for index in order[1:]), forward]  # start of each layer's backward
    layers = [
        Layer(str(index), forward / len(order), model.ready[index] - start, (tensors[index],))
        for index, start in zip(order, before, strict=True)
    ]
    ordered = Plan(tuple(tensors[index] for index in order), tuple(tuple(place[i] for i in g) for g in checked))
    return simulate_step(layers, ordered, AlphaBeta(model.alpha, model.beta))


def cnn() -> tuple[Tensor, ...]:
    """Return chapter 08's network for 28 × 28 digits: two 3 × 3 convolutions, two linear layers, 206,922 parameters."""
    shapes = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "fc1": (128, 1568), "fc2": (10, 128)}
    return tuple(tensor for name, shape in shapes.items() for tensor in _weight_and_bias(name, shape))


def mlp(depth: int = 40, width: int = 4096, bias: bool = True) -> tuple[Tensor, ...]:
    """Return ``depth`` linear layers from ``width`` to ``width``."""
    shape = (check_int("width", width, 1),) * 2
    layers = (_weight_and_bias(str(k), shape) for k in range(check_int("depth", depth, 1)))
    return tuple(tensor for layer in layers for tensor in layer[: 1 + bias])


def gpt() -> tuple[Tensor, ...]:
    """Return the smallest GPT-2 (Radford et al., 2019), whose output layer shares the token embedding: 124,439,808."""
    depth, d, vocabulary, context = 12, 768, 50257, 1024
    tensors = [Tensor("wte.weight", (vocabulary, d), "float32"), Tensor("wpe.weight", (context, d), "float32")]
    block = {
        "ln_1": (d,),
        "attn.c_attn": (3 * d, d),
        "attn.c_proj": (d, d),
        "ln_2": (d,),
        "mlp.c_fc": (4 * d, d),
        "mlp.c_proj": (d, 4 * d),
    }
    for k in range(depth):
        for name, shape in block.items():
            tensors += _weight_and_bias(f"h.{k}.{name}", shape)
    return (*tensors, *_weight_and_bias("ln_f", (d,)))


def _weight_and_bias(name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return Tensor(f"{name}.weight", shape, "float32"), Tensor(f"{name}.bias", shape[0], "float32")
