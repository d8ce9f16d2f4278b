"""Data parallelism for torch, from scratch: wrappers, a sharded optimizer, an emulated link, and what measures them."""

from dpbook.ddp.activations import measure_memory
from dpbook.ddp.clock import ObservedLink, observe_step, step_time
from dpbook.ddp.emulated_link import SlowCall, SlowLink, slow
from dpbook.ddp.layers import measure_layers, specification
from dpbook.ddp.reducer import Reducer
from dpbook.ddp.replication import replicate
from dpbook.ddp.sharded import Event, FullySharded, Half, ShardedState, over_half
from dpbook.ddp.sharded_optimizer import ShardedOptimizer
from dpbook.ddp.transport import over
from dpbook.ddp.wrappers import BucketedDDP, HookDDP, NaiveDDP
