"""Published scaling curves of fully sharded training, beside the planner's."""

import json
from typing import NamedTuple

from dpbook.core import DATA
from dpbook.planning import ACCELERATORS, LINKS, Cluster, Job, predict

CONTEXT = 2048
"""Tokens in a sequence."""
LAYERS = {"760M": 24, "1B": 24, "3B": 32, "7B": 32, "13B": 40, "30B": 48, "70B": 80}
"""Layers of each model; a unit of the sharded model is a layer."""
MACHINES = {"H100": ("H100 SXM", "InfiniBand NDR 400 Gb/s"), "A100": ("A100 80 GB", "InfiniBand HDR 200 Gb/s")}
"""Accelerator, and link of its port to the network. The source gives the network of the A100, 1,600 Gb/s for 8 GPUs,
and not that of the H100. The A100 have 40 GB, which changes no time here."""
WIRES = 0.77
"""Share of the wires, as `fixed` finds it for one node. With 0.6 or 1 no error changes by more than 1.2 %."""
ITEMSIZE = 4
"""Bytes of a gradient on the wire. The source does not give it; with 2 no error changes by more than 1.2 %."""
ROUNDS = 8
"""Rounds in which the share of the peak is found; each leaves less than a tenth of the error of the one before."""


class CurvePoint(NamedTuple):
    """Measured training of a model; ``sequences`` per GPU and step, ``rate`` in tokens per second and GPU."""

    machine: str
    model: str
    parameters: int
    gpus: int
    sequences: int
    recompute: bool
    rate: float


def scaling_curves() -> dict[str, list[CurvePoint]]:
    """Return the curve of each model and machine, by number of GPUs: 0.76 to 70 billion parameters on 8 to 512 GPUs.

    Source: Databricks MosaicML, LLM Foundry, ``scripts/train/benchmarking/README.md``.
    """
    curves: dict[str, list[CurvePoint]] = {}
    for row in json.loads((DATA / "mosaic_curves.json").read_text(encoding="utf-8"))["rows"]:
        point = CurvePoint(*row)
        curves.setdefault(f"{point.model}, {point.machine}", []).append(point)
    return curves


def curve_errors(points: list[CurvePoint], contention: float) -> list[float]:
    """Return the relative errors of the predicted rates; the share of the peak is fixed on the first point."""
    share = _share_of_the_peak(points[0], contention)
    return [_predicted(point, share, contention)[0] / point.rate - 1 for point in points[1:]]


def _share_of_the_peak(point: CurvePoint, contention: float) -> float:
    """Return the share of the peak with which the point's rate is predicted."""
    seconds, share = point.sequences * CONTEXT / point.rate, 0.5
    for _ in range(ROUNDS):
        _, compute, rest = _predicted(point, share, contention)
        share *= compute / (seconds - rest)
    return share


def _predicted(point: CurvePoint, share: float, contention: float) -> tuple[float, float, float]:
    """Return the rate, the seconds of computation, and those of the rest of the step."""
    nbytes = ITEMSIZE * point.parameters
    job = Job(
        point.parameters, CONTEXT, itemsize=ITEMSIZE, stage=3, cap=nbytes / LAYERS[point.model], window="all",
        recompute=point.recompute,
    )  # fmt: skip
    accelerator, network = MACHINES[point.machine]
    cluster = Cluster(
        ACCELERATORS[accelerator], point.gpus, LINKS[network], utilisation=share, wires=WIRES, contention=contention
    )
    step = predict(job, cluster, point.sequences)
    return step.tokens_per_second / point.gpus, step.compute, step.seconds - step.compute
