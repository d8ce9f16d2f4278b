"""Which examples each rank reads, and what its average weighs."""

from dpbook.replicas.feeding.accumulation import Leftover
from dpbook.replicas.feeding.feeds import Feed, feed
