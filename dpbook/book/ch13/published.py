"""What others have measured, beside what the planner says: shares fixed on part of it, the rest predicted."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import fit
from dpbook.planning import ACCELERATORS, LINKS, NVLS_SHARE, Cluster, Job, all_reduce, strong

Floats = NDArray[np.float64]
RING_UP_TO = 2**20
"""Bytes up to which NCCL took its ring in the sweep; from there on the switches added."""
SHARE, WIRES = 0.47, 0.77
"""Of the peak, fixed on Llama 3 405B's 8,192 GPUs; of the wires, as `fixed` finds it in every second size."""


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
    """A published run. ``reached``: operations per second and GPU, of the model alone, as printed, of ``peak``.

    ``job`` None: its links are not in our tables. A pipeline of ``stages`` with ``chunks`` each idles for
    (stages − 1) / (chunks · micro-batches) of the time it computes (Narayanan et al., 2021).
    """

    gpus: int
    peak: float
    reached: float
    tokens: int
    job: Job | None = None
    stages: int = 16
    chunks: int = 8
    gpu: str = "H100 SXM"

    @property
    def predicted(self) -> float:
        """Operations per second and GPU: `SHARE` of the peak, less the pipeline's idling and the exposed sync."""
        if self.job is None:
            return SHARE * self.peak
        network = LINKS["InfiniBand NDR 400 Gb/s"]
        cluster = Cluster(ACCELERATORS[self.gpu], self.gpus, network, utilisation=SHARE, wires=WIRES)
        (step,) = strong(self.job, cluster, [self.gpus], self.tokens // self.job.context, cut_sequences=True)
        idle = (self.stages - 1) / (self.chunks * self.job.accumulation)
        return SHARE * self.peak * step.compute / (step.compute * (1 + idle) + step.exposed)


def _llama(micro_batches: int, context: int = 8192) -> Job:
    """Copies are cut over 8 tensor ranks and 16 stages; the rest is DP × CP. A bucket is a layer.

    Gradients are summed over the micro-batches in fp32, then reduce-scattered; weights are not resharded after forward:
    it sends as ZeRO-1 does, though it keeps less.
    """
    parameters, cut, layers = 405 * 10**9, 128, 8
    return Job(
        parameters, context, itemsize=4, stage=1, cut=cut, cap=4 * parameters / cut / layers, accumulation=micro_batches
    )


H100 = ACCELERATORS["H100 SXM"].flops
_DEEPSEEK = Job(671 * 10**9, 4096, active=37 * 10**9, itemsize=4, stage=1, accumulation=120, cut=1024)
PUBLISHED: dict[str, Run] = {
    "Llama 3 405B, 8,192 H100": Run(8192, H100, 430e12, 2**24, _llama(32)),
    "Llama 3 405B, 16,384 H100": Run(16384, H100, 400e12, 2**24, _llama(16)),
    "Llama 3 405B, 131,072 tokens of context": Run(16384, H100, 380e12, 2**24, _llama(16, 131072)),
    "PaLM 540B, 6,144 TPU v4": Run(6144, 275e12, 0.462 * 275e12, 2048 * 2048),
    "DeepSeek-V3, 2,048 H800": Run(
        2048, H100, 6 * 37e9 * 1e12 / (180e3 * 3600), 15360 * 4096, _DEEPSEEK, chunks=1, gpu="H800"
    ),
}
"""Llama Team, "The Llama 3 herd of models" (2024), table 4: TFLOP/s per GPU; 8 chunks a stage (126 layers and two for
the ends over 16 · 8), a sequence in each micro-batch. Chowdhery et al., "PaLM: scaling language modeling with Pathways"
(2022): 46.2 % of the peak. DeepSeek-AI, "DeepSeek-V3 technical report" (2024): 180,000 GPU hours for 10^12 tokens,
matrix products in fp8; here as if cut everywhere as its experts are, and its pipeline plain 1F1B."""
