"""Data parallelism for torch, from scratch: wrappers, a sharded optimizer, an emulated link, and measurements."""

from dpbook.ddp.emulated_link import ObservedLink, SlowCall, SlowLink, observe_step, slow, step_time
from dpbook.ddp.measurements import measure_layers, specification
from dpbook.ddp.reducer import Reducer, tensors_in
from dpbook.ddp.sharded import FullySharded, Half, ShardedState, UnitEvent, over_half
from dpbook.ddp.sharded_optimizer import ShardedOptimizer
from dpbook.ddp.transport import BackgroundAllReduce, over
from dpbook.ddp.wrappers import BucketedDDP, HookDDP, NaiveDDP, replicate
