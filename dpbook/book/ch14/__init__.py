"""Chapter 14: Shard everything."""

from dpbook.book.ch14.cuts import cut_step, sample_layers
from dpbook.book.ch14.holders import play_sharding
from dpbook.book.ch14.unit_runs import in_turns, trained_in_turns
