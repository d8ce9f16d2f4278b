"""The gradient noise scale: how many examples it takes until a batch's gradient is more signal than noise.

The mean gradient of B examples is G plus noise of covariance Σ / B, so its squared norm is |G|² + tr Σ / B on average.
Data parallelism computes gradients of two batch sizes anyway: the local ones, of b examples, and their average, of
B = world · b. Two equations, two unknowns (McCandlish, Kaplan, Amodei and the OpenAI Dota Team, An Empirical Model of
Large-Batch Training, 2018, appendix A).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpbook.core import InvalidArgument, check_int
from dpbook.replicas import Array, Model


@dataclass(frozen=True)
class NoiseScale:
    """One estimate of signal and noise; both are right on average, and either may be negative or far off by itself.

    Attributes:
        signal: |G|², the squared norm of the gradient over all examples there could be.
        noise: tr Σ, the sum over the parameters of the variance between single examples' gradients.
    """

    signal: float
    noise: float

    @property
    def scale(self) -> float:
        """B_simple = tr Σ / |G|², in examples: the batch whose noise is as large as its signal.

        Negative or infinite where the signal could not be told from 0; more steps may help.
        """
        return self.noise / self.signal if self.signal else float("inf")

    def __repr__(self) -> str:
        return f"NoiseScale(|G|² {self.signal:.4g}, tr Σ {self.noise:.4g}: {self.scale:.4g} examples)"


def noise_scale(gradients: Array, local_batch: int) -> NoiseScale:
    """Estimate signal and noise without bias from what a data-parallel step has anyway.

    With |g|² the mean of the local gradients' squared norms and |ḡ|² that of their average:
    tr Σ = (|g|² − |ḡ|²) / (1/b − 1/B) and |G|² = (B |ḡ|² − b |g|²) / (B − b). The ranks need one more number summed.

    If the batch is drawn without repetition from a data set, tr Σ is that of the set (with n − 1 in the denominator),
    and |G|² is still that of the distribution behind it, below the set's own by tr Σ / n on average.

    Args:
        gradients: (world, size), each rank's gradient of its mean loss, before the average; 2 ranks or more.
        local_batch: examples of each rank, b. With 1, the gradients are single examples' and the result is direct.
    """
    b = check_int("local_batch", local_batch, 1)
    if not isinstance(gradients, np.ndarray) or gradients.ndim != 2 or len(gradients) < 2:
        raise InvalidArgument("gradients", gradients, "an array (world, size) of two or more ranks")
    rows = gradients.astype(np.float64)
    global_batch = b * len(rows)
    small = float((rows * rows).sum(axis=1).mean())
    large = float((rows.mean(axis=0) ** 2).sum())
    noise = (small - large) / (1 / b - 1 / global_batch)
    signal = (global_batch * large - b * small) / (global_batch - b)
    return NoiseScale(signal, noise)


def smooth(estimates: Iterable[NoiseScale], decay: float = 1.0) -> Iterator[NoiseScale]:
    """Yield after each step the averages of signal and of noise so far, whose quotient is then the noise scale.

    The quotients of single steps must not be averaged: a signal near 0 makes one of them huge, or negative.

    Args:
        decay: what a step's weight is multiplied by with each further step; 1 weights all alike. The signal changes in
            training, so a long run wants less, such as 0.99.
    """
    if not 0 < decay <= 1:
        raise InvalidArgument("decay", decay, "a number above 0 and at most 1")
    signal = noise = weight = 0.0
    for estimate in estimates:
        signal, noise = decay * signal + estimate.signal, decay * noise + estimate.noise
        weight = decay * weight + 1
        yield NoiseScale(signal / weight, noise / weight)


def example_gradients(model: Model, params: Array, x: Array, y: Array) -> Array:
    """Return each example's own gradient, (n, size), at ``params`` (size,): n backward passes, for small models."""
    if len(x) == 0:
        raise InvalidArgument("x", x, "one or more examples")
    return np.stack([model.gradient(params, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])


def variance_by_batch(
    gradients: Array, batches: Sequence[int], draws: int = 200, rng: np.random.Generator | None = None
) -> Array:
    """Measure the variance of a batch's mean gradient for several batch sizes, (len(batches),).

    It is summed over the parameters and expected to be tr Σ / B for a batch of B: the *variance* falls by B, the
    standard deviation, its root, by √B.

    Args:
        gradients: (n, size), single examples' gradients, from which batches are drawn with repetition.
        draws: batches of each size, 2 or more; the relative error is about √(2 / draws) or less.
        rng: where the draws come from; ``default_rng(0)`` by default.
    """
    if not isinstance(gradients, np.ndarray) or gradients.ndim != 2 or len(gradients) == 0:
        raise InvalidArgument("gradients", gradients, "an array (n, size) of one or more examples")
    check_int("draws", draws, 2)
    rng = np.random.default_rng(0) if rng is None else rng
    variances = []
    for batch in batches:
        n = check_int("batches", batch, 1)
        # How often each example is in a batch says all: a product with these counts needs no (draws, B, size) array.
        counts = rng.multinomial(n, np.full(len(gradients), 1 / len(gradients)), size=draws)
        variances.append((counts @ gradients / n).var(axis=0, ddof=1).sum())
    return np.array(variances)
