"""Two models with gradients by hand, the losses that they are trained on, and data: digits, and a synthetic regression.

All parameters of a model lie in one flat array, because an all-reduce moves one buffer; `views` gives each tensor its
name and shape without copying. A loss depends on one example at a time, so the gradient of the mean loss is the mean of
the examples' gradients. Data parallelism rests on this fact.

Forward and backward passes use only operators and functions of NumPy, so that they also run on numbers that carry their
rounding errors (see `rounding_bounds`).
"""

import gzip
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpbook.core import DATA, DpbookError, InvalidArgument, check_float, check_int, check_type

Array: TypeAlias = NDArray[Any]


def describe(value: object) -> str:
    """Return a description of an argument without its numbers, for messages."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return repr(value)


IMAGES = 1797
TRAINING_IMAGES = 1440  # worlds 1–6, 8, 9 and 16 divide it
STRIDE = 1111  # 0.618 of the images, and no common factor with their number: neighbours in the file are spread evenly


def digits(dtype: DTypeLike = np.float64) -> tuple[Array, Array]:
    """Return 1,797 handwritten digits: images (1797, 64) of ``dtype`` from 0 to 1, and labels (1797,) as integers.

    An image is 8 × 8 pixels, row by row. Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI
    Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0; see ``dpbook/data/digits/README.md``. Raises
    `DpbookError` if the file differs from the one that ships with the package.
    """
    packed = (DATA / "digits" / "digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.int64)
    pixels, labels = table[:, :-1], table[:, -1]
    if table.shape != (IMAGES, 65) or pixels.min() != 0 or pixels.max() != 16 or set(labels) != set(range(10)):
        raise DpbookError("digits.csv.gz must hold 1797 rows of 64 pixels from 0 to 16 and a label from 0 to 9")
    return (pixels / 16).astype(dtype), labels.copy()


def split(images: Array, labels: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Divide the digits, as `digits` returns them, into 1,440 for training and 357 for testing: (images, labels) each.

    The order of the file is not random: it begins with 0 to 9, three times. A fixed stride mixes it without random
    numbers, so the split is the same on every rank and machine and in every version of NumPy.
    """
    for name, array in (("images", images), ("labels", labels)):
        if not isinstance(array, np.ndarray) or array.shape[:1] != (IMAGES,):
            raise InvalidArgument(name, describe(array), f"an array of {IMAGES}, one per digit")
    order = np.arange(IMAGES) * STRIDE % IMAGES
    train, test = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    return (images[train], labels[train]), (images[test], labels[test])


def synthetic_task(
    examples: int = 4096, inputs: int = 16, noise: float = 0.05, seed: int = 7, dtype: DTypeLike = np.float64
) -> tuple[Array, Array]:
    """Return x (examples, inputs) and y = tanh(x w*) + noise · ε as a column (examples, 1), both of ``dtype``.

    One generator draws x, then w*, then ε, all standard normal and in float64.
    """
    n, d = check_int("examples", examples, 1), check_int("inputs", inputs, 1)
    check_float("noise", noise, minimum=0)
    rng = np.random.default_rng(check_int("seed", seed, 0))
    x = rng.standard_normal((n, d))
    weights = rng.standard_normal((d, 1))
    y = np.tanh(x @ weights) + noise * rng.standard_normal((n, 1))
    return x.astype(dtype), y.astype(dtype)


Loss: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""A loss is a function ``loss(output, y)`` of an ``output`` (n, outputs). It returns the losses (n,) of the examples
and the derivatives (n, outputs) of each example's loss by its outputs."""


def squared_error(output: Array, y: Array) -> tuple[Array, Array]:
    """Return the loss ‖output − y‖² of each example, without a factor ½, and its derivative.

    ``y`` has the shape (n, outputs) and the dtype of ``output``.
    """
    if y.shape != output.shape or y.dtype != output.dtype:
        # A column and a flat array would silently broadcast to a matrix.
        raise InvalidArgument("y", describe(y), f"targets like the outputs, {describe(output)}")
    error = output - y
    return (error * error).sum(axis=1), 2 * error


def cross_entropy(output: Array, y: Array) -> tuple[Array, Array]:
    """Return the softmax cross-entropy of each example and its derivative; ``y`` has n labels from 0 to outputs − 1."""
    n, classes = output.shape
    if y.shape != (n,) or y.dtype.kind not in "iu":
        raise InvalidArgument("y", describe(y), f"{n} integer labels in one dimension")
    if y.min() < 0 or y.max() >= classes:
        raise InvalidArgument("y", f"{y.min()}..{y.max()}", f"labels from 0 to {classes - 1}")
    # Each row's own maximum: with the batch's maximum an example's loss would depend on its neighbours.
    shifted = output - output.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True)
    slopes = exponentials / totals - (y[:, None] == np.arange(classes))
    return np.log(totals[:, 0]) - shifted[np.arange(n), y], slopes


INITIAL_SCALE = 0.1  # standard deviation of a weight before training


class Model(Protocol):
    """Interface of a model for the training loop. ``x`` has one example per row; ``y`` are the targets of its loss."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    def init(self, rng: np.random.Generator, dtype: DTypeLike = np.float64) -> Array:
        """Draw parameters: a flat array (size,)."""

    def loss(self, params: Array, x: Array, y: Array) -> float:
        """Return the mean loss of the examples."""

    def gradient(self, params: Array, x: Array, y: Array) -> Array:
        """Return the gradient of the mean loss: a flat array (size,) of the dtype of ``params``."""

    def predict(self, params: Array, x: Array) -> Array:
        """Return the model's outputs, one row per example."""


class Network(ABC):
    """Base of the models: named views of the flat parameters, and the mean over examples."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], loss: Loss) -> None:
        self.shapes = shapes
        ends = [0, *accumulate(math.prod(shape) for shape in shapes.values())]
        self.size = ends[-1]
        self._places = {name: slice(*place) for name, place in zip(shapes, pairwise(ends), strict=True)}
        self._loss = loss

    def __repr__(self) -> str:
        matrices = [shape for shape in self.shapes.values() if len(shape) == 2]
        widths = " → ".join(map(str, (matrices[0][0], *(outputs for _, outputs in matrices))))
        return f"{type(self).__name__}({widths}, {self.size:,} parameters)"

    @abstractmethod
    def _outputs(self, p: dict[str, Array], x: Array) -> Array: ...

    @abstractmethod
    def sum_gradients(self, p: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
        """Return the sum of the examples' gradients by tensor name, given the parameters' tensors ``p``.

        It also accepts a stack of networks: every tensor with a leading axis, a bias as rows (networks, 1, outputs),
        ``x`` as (networks, n, inputs), and a loss that accepts stacks. The sum of a bias is then (networks, outputs).
        """

    def views(self, params: Array) -> dict[str, Array]:
        """Return every tensor under its name, as a view of the flat array ``params`` of shape (size,)."""
        if not isinstance(params, np.ndarray) or params.shape != (self.size,):
            raise InvalidArgument("params", describe(params), f"a flat array of {self.size} parameters")
        if params.dtype not in (np.float32, np.float64):
            raise InvalidArgument("params", describe(params), "of dtype float32 or float64")
        return {name: params[self._places[name]].reshape(shape) for name, shape in self.shapes.items()}

    def init(self, rng: np.random.Generator, dtype: DTypeLike = np.float64) -> Array:
        """Draw the weights in order from 0.1 · normal, in float64 before rounding to ``dtype``; biases are 0."""
        check_type("rng", rng, np.random.Generator, "a numpy.random.Generator")
        if dtype not in (np.float32, np.float64):
            raise InvalidArgument("dtype", dtype, "float32 or float64")
        params = np.zeros(self.size)
        for name, tensor in self.views(params).items():
            if name.startswith("W"):
                tensor[...] = INITIAL_SCALE * rng.standard_normal(tensor.shape)
        return params.astype(dtype)

    def loss(self, params: Array, x: Array, y: Array) -> float:
        """Return the mean loss of the rows of ``x`` (n, inputs)."""
        return float(np.mean(self._loss(self.predict(params, x), np.asarray(y))[0]))

    def gradient(self, params: Array, x: Array, y: Array) -> Array:
        """Return the gradient of the mean loss: the sum over the rows of ``x`` (n, inputs), divided by n at the end."""
        p, x = self.check(params, x)
        sums = self.sum_gradients(p, x, np.asarray(y))
        return np.concatenate([sums[name].ravel() for name in self.shapes]) / len(x)

    def predict(self, params: Array, x: Array) -> Array:
        """Return the outputs (n, outputs) for the rows of ``x`` (n, inputs): values, or one score per class."""
        return self._outputs(*self.check(params, x))

    def check(self, params: Array, x: Array) -> tuple[dict[str, Array], Array]:
        """Return the tensors of ``params`` and ``x``, or raise `InvalidArgument` if they do not fit together."""
        tensors = self.views(params)
        inputs = next(iter(self.shapes.values()))[0]
        if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != inputs or len(x) == 0:
            raise InvalidArgument("x", describe(x), f"an array of shape (n, {inputs}) with n > 0")
        if x.dtype != params.dtype:
            raise InvalidArgument("x", describe(x), f"of the parameters' dtype {params.dtype}")
        return tensors, x


class Linear(Network):
    """Linear model x W + b, with W (inputs, outputs) and b (outputs)."""

    def __init__(self, inputs: int, outputs: int = 1, loss: Loss = squared_error) -> None:
        self.inputs, self.outputs = check_int("inputs", inputs, 1), check_int("outputs", outputs, 1)
        super().__init__({"W": (inputs, outputs), "b": (outputs,)}, loss)

    def _outputs(self, p: dict[str, Array], x: Array) -> Array:
        output: Array = x @ p["W"] + p["b"]
        return output

    def sum_gradients(self, p: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
        _, slopes = self._loss(self._outputs(p, x), y)
        return {"W": x.swapaxes(-1, -2) @ slopes, "b": slopes.sum(axis=-2)}


class MLP(Network):
    """Model of two layers, tanh(x W1 + b1) W2 + b2, with W1 (inputs, hidden) and W2 (hidden, outputs)."""

    def __init__(self, inputs: int, hidden: int, outputs: int = 1, loss: Loss = squared_error) -> None:
        self.inputs, self.hidden = check_int("inputs", inputs, 1), check_int("hidden", hidden, 1)
        self.outputs = check_int("outputs", outputs, 1)
        shapes = {"W1": (inputs, hidden), "b1": (hidden,), "W2": (hidden, outputs), "b2": (outputs,)}
        super().__init__(shapes, loss)

    def _hidden(self, p: dict[str, Array], x: Array) -> Array:
        hidden: Array = np.tanh(x @ p["W1"] + p["b1"])
        return hidden

    def _outputs(self, p: dict[str, Array], x: Array) -> Array:
        output: Array = self._hidden(p, x) @ p["W2"] + p["b2"]
        return output

    def sum_gradients(self, p: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
        hidden = self._hidden(p, x)
        _, slopes = self._loss(hidden @ p["W2"] + p["b2"], y)
        before_tanh = (slopes @ p["W2"].swapaxes(-1, -2)) * (1 - hidden * hidden)  # tanh' = 1 − tanh²
        return {
            "W1": x.swapaxes(-1, -2) @ before_tanh,
            "b1": before_tanh.sum(axis=-2),
            "W2": hidden.swapaxes(-1, -2) @ slopes,
            "b2": slopes.sum(axis=-2),
        }


def accuracy(model: Model, params: Array, x: Array, labels: Array) -> float:
    """Return the share of the rows of ``x`` whose largest output is that of their label, from 0 to 1."""
    labels = np.asarray(labels)
    if labels.shape != (len(x),):
        raise InvalidArgument("labels", describe(labels), f"{len(x)} labels in one dimension")
    return float(np.mean(model.predict(params, x).argmax(axis=1) == labels))
