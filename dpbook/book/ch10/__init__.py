"""Chapter 10: Build your own DDP."""

from typing import TYPE_CHECKING

from dpbook.book.ch10.predictions import step_bars, step_prediction
from dpbook.core import lazy_exports

if TYPE_CHECKING:
    from dpbook.book.ch10.wires import in_threads

__getattr__ = lazy_exports(__name__, in_threads="wires")
