"""Which examples each rank reads, and what its average weighs."""

from dpbook.replicas.feeding.feeds import Feed, feed
