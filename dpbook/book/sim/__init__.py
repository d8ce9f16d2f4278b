"""Stand-in accelerator in pure Python: device "sim", collectives "simccl". Code for a GPU runs on a laptop.

The library does not need it; tests and the book install it. docs/standin.md lists what it imitates and what it does
not. Importing this package loads no torch.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports

if TYPE_CHECKING:
    from dpbook.book.sim.device import install, join, missing
    from dpbook.book.sim.streams import KernelSpan, hold, slower, watch

__getattr__ = lazy_exports(
    __name__, KernelSpan="streams", hold="streams", install="device", join="device", missing="device",
    slower="streams", watch="streams",
)  # fmt: skip
