"""Chapter 14: Shard everything."""

from dpbook.book.ch14.holders import play_sharding
