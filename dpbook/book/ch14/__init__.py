"""Chapter 14: Shard everything."""

from typing import TYPE_CHECKING

from dpbook.book.ch14.holders import play_sharding
from dpbook.book.ch14.units import allocated, cut_step, in_turns, sample_layers, trained_in_turns
from dpbook.ranks import sent

if TYPE_CHECKING:
    from dpbook.book.ch14 import train_fully_sharded  # a module, found without help
