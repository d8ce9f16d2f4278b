"""Fully sharded data parallelism from scratch: every rank keeps, gathers, frees and reduces pieces of the weights."""

from dpbook.ddp.sharded.fully_sharded import FullySharded, ShardedState
from dpbook.ddp.sharded.row import Half, over_half
from dpbook.ddp.sharded.unit import UnitEvent
