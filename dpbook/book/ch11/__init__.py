"""Chapter 11: Real multi-GPU."""

from typing import TYPE_CHECKING

from dpbook.book.ch11.wire import explore_wire
from dpbook.core import lazy_exports

if TYPE_CHECKING:
    from dpbook.book.ch11 import train_ddp  # a module, found without help
    from dpbook.book.ch11.loops import watch

__getattr__ = lazy_exports(__name__, watch="loops")
