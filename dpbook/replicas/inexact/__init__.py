"""Inexact methods: they send fewer bits or numbers, send less often or later, or omit a rank."""

from dpbook.replicas.inexact.analysis import Parabolas, largest_stable_rate, local_fixed_point, relative_distance
from dpbook.replicas.inexact.compression import (
    Compressed,
    Exchange,
    ExchangeResult,
    GatheringCompressor,
    LowRank,
    Sign,
    TopK,
)
from dpbook.replicas.inexact.delayed_updates import Asynchronous, AsyncUpdate, DiLoCo, LocalSGD, Stale, updates
from dpbook.replicas.inexact.low_precision import FORMATS, Format, LowPrecision, all_gather, all_reduce, bf16
from dpbook.replicas.inexact.missing_ranks import Backup, Lost, all_reduce_among
