"""Chapter 11: Real multi-GPU."""

from typing import TYPE_CHECKING

from dpbook.book.ch11.wire import explore_wire
from dpbook.core import lazily

if TYPE_CHECKING:
    from dpbook.book.ch11 import train_ddp  # a module, found without help
    from dpbook.book.ch11.payload import watch

__getattr__ = lazily(__name__, watch="payload")
