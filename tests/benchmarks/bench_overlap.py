"""How fast are plans, simulated steps, prices and predictions? Nothing here needs torch.

python tests/benchmarks/bench_overlap.py [--repeats 9]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dpbook.collectives import AlphaBeta, Link, cost, ring
from dpbook.collectives.pricing import closed_forms
from dpbook.overlap import best_cap, bucketed, equal_layers, hook, plan, simulate_step, tensors_of
from dpbook.planning import ACCELERATORS, LINKS, MODELS, Cluster, Job, predict
from tests.benchmarks.rows import Row, begin, seconds, show


def main() -> None:
    repeats = begin(__doc__, repeats=9)
    layers, price = equal_layers(1000, 0.03, 0.07, 10_000_000), AlphaBeta(1e-5, 1e-9)
    tensors = tensors_of(layers)
    buckets = bucketed(plan(tensors, 100_000, None))
    crowded = {"contention": 1.5, "streams": 2, "kernel_launch": 1e-6}
    llama, h100 = MODELS["Llama-2 7B"].tensors(), ACCELERATORS["H100 SXM"]
    link = Link.gigabits(400, latency=5e-6)
    for name, call, goal in (
        ("simulate a step of 1,000 layers in 100 buckets", lambda: simulate_step(layers, buckets, price), 50),
        (
            "simulate a step of 1,000 layers with a message per layer",
            lambda: simulate_step(layers, hook(layers), price),
            50,
        ),
        (
            "simulate it with contention, two streams and launches",
            lambda: simulate_step(layers, hook(layers), price, **crowded),
            50,
        ),
        ("plan the buckets of 291 tensors", lambda: plan(llama), None),
        (
            "find the best of all caps for 20 layers",
            lambda: best_cap(equal_layers(20, 0.03, 0.07, 10_000), price),
            None,
        ),
        ("price a ring of 8,192 in closed form", lambda: closed_forms.ring(8192, link)(25e6), None),
        (
            "predict a step of 8,192 GPUs",
            lambda: predict(Job(70_000_000_000), Cluster(h100, 8192, LINKS["InfiniBand NDR 400 Gb/s"])),
            None,
        ),
    ):
        show(Row(name, [1e3 * seconds(call) for _ in range(repeats)], "ms", at_most=goal))
    counted = [seconds(lambda: cost(ring(8192), 8192 * 4, link)) for _ in range(min(repeats, 3))]
    show(Row("price the same ring by counting its messages", counted, "s"))


if __name__ == "__main__":
    main()
