"""Does the planner predict curves that neither fixed nor changed it: TorchTitan's FSDP2 from 8 to 128 H100?

Source: pytorch/torchtitan, ``benchmarks/llama3_h100_202412_torchtitan.md``, tables 1 and 3: Llama 3.1 8B, two sequences
of 8,192 tokens per GPU, 400 Gb/s for each GPU. Its selective recomputation is left out, since the share of the peak,
fixed on 8 GPUs, holds what it costs.
"""

import pytest

from dpbook.book.ch13.published import CONTENTION, WIRES
from dpbook.planning import ACCELERATORS, LINKS, Cluster, Job, Transformer, predict
from tests.cases import each

LLAMA = Transformer("Llama 3.1 8B", 32, 4096, 32, 8, 128, 14_336, 128_256, 8192, "the model's card")
RATES = {"eager": (5762, 5605), "compiled": (6667, 6514)}
"""Tokens per second and GPU, on 8 and on 128 GPUs."""


def rate(gpus, share, contention):
    layer = 4 * LLAMA.parameters / LLAMA.layers
    job = Job(LLAMA.parameters, LLAMA.context, itemsize=4, stage=3, cap=layer, window="all")
    network = LINKS["InfiniBand NDR 400 Gb/s"]
    cluster = Cluster(ACCELERATORS["H100 SXM"], gpus, network, 8, None, share, WIRES, contention)
    return predict(job, cluster, 2).tokens_per_second / gpus


def error(name, contention):
    on_8, on_128 = RATES[name]
    low, high = 0.1, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(8, middle, contention) < on_8 else (low, middle)
    assert rate(8, low, contention) == pytest.approx(on_8)
    return rate(128, low, contention) / on_128 - 1


@each("name", [*RATES])
def test_128_gpus_are_predicted_within_two_per_cent_with_contention_and_too_fast_without(name):
    assert abs(error(name, CONTENTION)) < 0.02 < error(name, 0.0) < 0.03


def test_the_model_has_eight_billion_parameters():
    assert round(LLAMA.parameters / 1e9, 2) == 8.03
