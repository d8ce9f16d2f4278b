"""The array type of this room, the digits that ship with the package, and a synthetic regression task."""

import gzip
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpbook.core import DATA, DpbookError, InvalidArgument, check_float, check_int

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

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
    doi:10.24432/C50P49, CC BY 4.0; see ``dpbook/data/digits/README.md``. An image is 8 × 8 pixels, row by row.

    Raises:
        DpbookError: the file differs from the one that ships with the package.
    """
    packed = (DATA / "digits" / "digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.int64)
    pixels, labels = table[:, :-1], table[:, -1]
    if table.shape != (IMAGES, 65) or pixels.min() != 0 or pixels.max() != 16 or set(labels) != set(range(10)):
        raise DpbookError("digits.csv.gz must hold 1797 rows of 64 pixels from 0 to 16 and a label from 0 to 9")
    return (pixels / 16).astype(dtype), labels.copy()


def split(images: Array, labels: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Divide the digits into 1,440 for training and 357 for testing, each as (images, labels).

    The order of the file is not random: it begins with 0 to 9, three times. A fixed stride mixes it without random
    numbers, so the split is the same on every rank and machine and in every version of NumPy.

    Args:
        images, labels: the arrays that `digits` returns.
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
