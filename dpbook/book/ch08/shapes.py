"""The gradients of models that the book talks about, by name and shape: no weights, no framework."""

from dpbook.core import check_int
from dpbook.overlap import Tensor


def cnn(dtype: str = "float32") -> tuple[Tensor, ...]:
    """Chapter 08's network for 28 × 28 digits: two 3 × 3 convolutions, two linear layers; 206,922 parameters."""
    shapes = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "fc1": (128, 1568), "fc2": (10, 128)}
    return tuple(tensor for name, shape in shapes.items() for tensor in _weight_and_bias(name, shape, dtype))


def mlp(depth: int = 40, width: int = 4096, bias: bool = True, dtype: str = "float32") -> tuple[Tensor, ...]:
    """``depth`` linear layers from ``width`` to ``width``."""
    shape = (check_int("width", width, 1),) * 2
    layers = (_weight_and_bias(str(k), shape, dtype) for k in range(check_int("depth", depth, 1)))
    return tuple(tensor for layer in layers for tensor in layer[: 1 + bias])


def gpt(
    depth: int = 12, width: int = 768, vocabulary: int = 50257, context: int = 1024, dtype: str = "float32"
) -> tuple[Tensor, ...]:
    """A GPT-2 whose output layer shares the token embedding; by default the smallest, 124,439,808 parameters.

    After Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
    """
    d = check_int("width", width, 1)
    tensors = [
        Tensor("wte.weight", (check_int("vocabulary", vocabulary, 1), d), dtype),
        Tensor("wpe.weight", (check_int("context", context, 1), d), dtype),
    ]
    block = {
        "ln_1": (d,),
        "attn.c_attn": (3 * d, d),
        "attn.c_proj": (d, d),
        "ln_2": (d,),
        "mlp.c_fc": (4 * d, d),
        "mlp.c_proj": (d, 4 * d),
    }
    for k in range(check_int("depth", depth, 1)):
        for name, shape in block.items():
            tensors += _weight_and_bias(f"h.{k}.{name}", shape, dtype)
    return (*tensors, *_weight_and_bias("ln_f", (d,), dtype))


def _weight_and_bias(name: str, shape: tuple[int, ...], dtype: str) -> tuple[Tensor, Tensor]:
    return Tensor(f"{name}.weight", shape, dtype), Tensor(f"{name}.bias", shape[0], dtype)
