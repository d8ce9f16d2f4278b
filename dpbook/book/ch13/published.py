"""What others have measured, beside what the planner says: shares fixed on part of it, the rest predicted."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import fit
from dpbook.core import DATA
from dpbook.planning import ACCELERATORS, LINKS, NVLS_SHARE, Accelerator, Cluster, Job, all_reduce, strong

Floats = NDArray[np.float64]
RING_UP_TO = 2**20
"""Bytes up to which NCCL took its ring in the sweep; from there on the switches added."""
SHARE, WIRES = 0.47, 0.77
"""Of the peak, fixed on Llama 3 405B's 8,192 GPUs; of the wires, as `fixed` finds it in every second size."""


def nccl_sweep() -> tuple[Floats, Floats]:
    """Bytes of the buffer and seconds of an all-reduce on 8 H200, 20 sizes each: the source is in the file."""
    told = json.loads((DATA / "measurements" / "nccl_h200.json").read_text(encoding="utf-8"))
    rates = 1e9 * np.array(told["gigabytes_per_second"])
    nbytes = told["smallest_bytes"] * 2.0 ** np.arange(len(rates))
    return nbytes, nbytes / rates


def fixed(nbytes: Floats, seconds: Floats) -> Cluster:
    """The node of the sweep, its latency of a round and its share of the wires fixed on these sizes.

    A ring of 8 has 14 rounds; a large buffer's slope is that of the switches.
    """
    h200, small = ACCELERATORS["H200 SXM"], nbytes <= RING_UP_TO
    latency = float(np.mean(seconds[small])) / 14
    through = fit(nbytes[~small], seconds[~small]).model.bandwidth
    fabric = replace(h200.fabric, latency=latency)
    node = Cluster(replace(h200, fabric=fabric), 8, LINKS["InfiniBand NDR 400 Gb/s"])
    return replace(node, wires=through / (NVLS_SHARE * fabric.bandwidth))


def predicted_sweep(node: Cluster, nbytes: Floats) -> Floats:
    """Seconds of an all-reduce by the planner, with the algorithm that NCCL took."""
    ring, switches = all_reduce("Ring", node.topology), all_reduce("NVLS", node.topology)
    return np.array([(ring if n <= RING_UP_TO else switches)(float(n)) for n in nbytes])


@dataclass(frozen=True)
class Run:
    """A published run. ``reached``: operations per second and GPU, of the model alone, as it was printed.

    ``stages`` of the pipeline with ``chunks`` each, ``micro_batches`` through it in a step: it idles for
    (stages − 1) / (chunks · micro_batches) of the time it computes (Narayanan et al., 2021).
    """

    gpus: int
    accelerator: Accelerator
    reached: float
    tokens: int
    job: Job | None
    stages: int = 1
    chunks: int = 1
    micro_batches: int = 1

    def predicted(self, share: float = SHARE, wires: float = WIRES) -> float:
        """Operations per second and GPU: a share of the peak, less the pipeline's idling and the exposed sync."""
        rate = share * self.accelerator.flops
        slower = 1 + (self.stages - 1) / (self.chunks * self.micro_batches)
        if self.job is None:
            return rate / slower
        network = LINKS["InfiniBand NDR 400 Gb/s"]
        cluster = Cluster(self.accelerator, self.gpus, network, utilisation=share, wires=wires)
        step = strong(self.job, cluster, [self.gpus], self.tokens // self.job.context, cut_sequences=True)[0]
        return rate * step.compute / (step.compute * slower + step.exposed)


H100, TPU = ACCELERATORS["H100 SXM"], Accelerator("TPU v4", 275e12, 32e9, LINKS["PCIe 4.0 x16"], "PaLM's paper")
LLAMA: dict[str, Any] = {"itemsize": 4, "stage": 1, "cut": 128, "cap": 405e9 * 4 / 128 / 8}
"""Copies are cut over 8 tensor ranks and 16 stages; the rest is DP × CP. A bucket is a layer. Gradients are summed over
the micro-batches in fp32, then reduce-scattered; weights are not resharded after forward: it *sends* as ZeRO-1 does."""
PUBLISHED: dict[str, Run] = {
    "Llama 3 405B, 8,192 H100": Run(
        8192, H100, 430e12, 2048 * 8192, Job(405 * 10**9, 8192, accumulation=32, **LLAMA), 16, 8, 32
    ),
    "Llama 3 405B, 16,384 H100": Run(
        16384, H100, 400e12, 2048 * 8192, Job(405 * 10**9, 8192, accumulation=16, **LLAMA), 16, 8, 16
    ),
    "Llama 3 405B, 131,072 tokens of context": Run(
        16384, H100, 380e12, 128 * 131072, Job(405 * 10**9, 131072, accumulation=16, **LLAMA), 16, 8, 16
    ),
    "PaLM 540B, 6,144 TPU v4": Run(6144, TPU, 0.462 * 275e12, 2048 * 2048, None),
    "DeepSeek-V3, 2,048 H800": Run(
        2048, ACCELERATORS["H800"], 6 * 37e9 * 1e12 / (180e3 * 3600), 15360 * 4096,
        Job(671 * 10**9, 4096, active=37 * 10**9, itemsize=4, stage=1, accumulation=120, cut=1024), 16, 1, 120,
    ),
}  # fmt: skip
"""Llama Team, "The Llama 3 herd of models" (2024), table 4: TFLOP/s per GPU; 8 chunks a stage (126 layers and two for
the ends over 16 · 8), a sequence in each micro-batch. Chowdhery et al., "PaLM: scaling language modeling with Pathways"
(2022): 46.2 % of the peak; its links are not in our tables, its sync is left out. DeepSeek-AI, "DeepSeek-V3 technical
report" (2024): 180,000 GPU hours for 10^12 tokens, matrix products in fp8; here as if the pipeline were plain 1F1B."""
