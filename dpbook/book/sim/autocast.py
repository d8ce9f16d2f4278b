"""Mixed precision on the device: which operations `torch.autocast` runs in the low dtype, and which in float32.

After torch's own lists for CUDA ("Autocast Op Reference" of its documentation), as far as the book's models go.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from dpbook.book.sim.memory import DEVICE, is_on_device
from dpbook.book.sim.operations import overload

LOW = (
    "addmm", "addmv", "baddbmm", "bmm", "conv1d", "conv2d", "linear", "matmul", "mm", "mv",
    "scaled_dot_product_attention",
)  # fmt: skip
FULL = (
    "cross_entropy_loss", "exp", "layer_norm", "log", "log_softmax.int", "mse_loss", "nll_loss", "norm.Scalar",
    "pow.Tensor_Scalar", "softmax.int", "sum", "sum.dim_IntList",
)  # fmt: skip
WITHOUT = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def register(library: Any) -> None:
    """Tell torch of all of them."""
    for name in LOW:
        library.impl(name, _cast(overload(name), lambda: torch.get_autocast_dtype(DEVICE.type)))
    for name in FULL:
        library.impl(name, _cast(overload(name), lambda: torch.float32))


def _cast(op: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    def cast(value: Any) -> Any:
        castable = is_on_device(value) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype()) if castable else value

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(WITHOUT):
            return op(*tree_map(cast, args), **tree_map(cast, kwargs))

    return run
