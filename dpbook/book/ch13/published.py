"""Published measurements beside the planner: a sweep of all-reduces, and scaling curves of other people's clusters."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpbook.book.ch06 import ROUNDS, fixed_on_two_points, predicted_sweep
from dpbook.collectives import fit
from dpbook.core import DATA, palette
from dpbook.figures import Picture
from dpbook.figures.card import finish, in_style, new_figure
from dpbook.planning import ACCELERATORS, LINKS, NVLS_SHARE, Cluster, Job, predict, strong
from dpbook.ranks import Sweep, published_sweep

WIRES = 0.77
"""Share of the wires, as `fixed` finds it for one node. With 0.6 or 1 no error of `curve_errors` changes by 1.2 %."""


def fixed(sweep: Sweep) -> Cluster:
    """Return the node of 8 H200, with the latency of a round and the share of the wires fitted to every second size.

    A ring of 8 has 14 rounds; the slope of large buffers is that of the switches, where 9/8 of a buffer pass a port.
    """
    nbytes, seconds, algorithms = sweep.nbytes[::2], sweep.seconds[::2], np.array(sweep.algorithms[::2])
    h200, small = ACCELERATORS["H200 SXM"], algorithms == "Ring"
    latency = float(np.mean(seconds[small])) / 14
    through = fit(nbytes[~small], seconds[~small]).model.bandwidth
    fabric = replace(h200.fabric, latency=latency)
    node = Cluster(replace(h200, fabric=fabric), 8, LINKS["InfiniBand NDR 400 Gb/s"])
    return replace(node, wires=9 / 8 * through / (NVLS_SHARE * fabric.bandwidth))


CONTEXT = 2048
"""Tokens in a sequence."""
LAYERS = {"760M": 24, "1B": 24, "3B": 32, "7B": 32, "13B": 40, "30B": 48, "70B": 80}
"""Layers of each model; a unit of the sharded model is a layer."""
MACHINES = {"H100": ("H100 SXM", "InfiniBand NDR 400 Gb/s"), "A100": ("A100 80 GB", "InfiniBand HDR 200 Gb/s")}
"""Accelerator, and link of its port to the network. The source gives the network of the A100, 1,600 Gb/s for 8 GPUs,
and not that of the H100. The A100 have 40 GB, which changes no time here."""
ITEMSIZE = 4
"""Bytes of a gradient on the wire. The source does not give it; with 2 no error changes by more than 1.2 %."""


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
    first, share = points[0], 0.5
    seconds = first.sequences * CONTEXT / first.rate
    for _ in range(ROUNDS):
        _, compute, rest = _predicted(first, share, contention)
        share *= compute / (seconds - rest)
    return [_predicted(point, share, contention)[0] / point.rate - 1 for point in points[1:]]


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


MEGATRON_CONTEXT = 4096
"""Tokens in a sequence of Megatron-LM's runs."""
MEGATRON_SHARE = 0.467
"""Share of the peak with which 177 billion parameters on 96 GPUs are predicted as published."""


class MegatronRun(NamedTuple):
    """A published run; ``reached`` in TFLOP/s per GPU, for a batch of ``sequences``.

    Weights and optimizer state are sharded as in ZeRO-1, and both collectives overlap (``--overlap-grad-reduce``,
    ``--overlap-param-gather``). The source has neither the micro-batches nor the chunks of a stage. We take one
    sequence in each micro-batch of a pipeline, and all sequences of a rank at once without one; a chunk is a layer.
    """

    parameters: float
    layers: int
    tensor: int
    stages: int
    gpus: int
    sequences: int
    reached: float

    def job(self, chunks: int | None = None) -> Job:
        """Return the planner's job, with ``chunks`` on each pipeline stage (default: one for each layer)."""
        cut, layers = self.tensor * self.stages, self.layers // self.stages
        micro_batches = self.sequences * cut // self.gpus if self.stages > 1 else 1
        return Job(
            int(self.parameters), MEGATRON_CONTEXT, itemsize=4, stage=1, cut=cut,
            cap=4 * self.parameters / cut / layers, window="all", accumulation=micro_batches, stages=self.stages,
            chunks=(chunks or layers) if self.stages > 1 else 1,
        )  # fmt: skip

    def error(self, chunks: int | None = None, contention: float = 0.0) -> float:
        """Return the relative error of the predicted rate."""
        network = LINKS["InfiniBand NDR 400 Gb/s"]
        cluster = Cluster(
            ACCELERATORS["H100 SXM"], self.gpus, network, utilisation=MEGATRON_SHARE, wires=WIRES, contention=contention
        )
        (step,) = strong(self.job(chunks), cluster, [self.gpus], self.sequences, cut_sequences=True)
        return MEGATRON_SHARE * ACCELERATORS["H100 SXM"].flops / 1e12 * step.efficiency / self.reached - 1


def megatron_runs() -> tuple[list[MegatronRun], list[MegatronRun]]:
    """Return the runs of strong scaling (177 billion parameters, 96 to 4,608 GPUs) and of weak scaling (48 to 6,144).

    The data file names the source.
    """
    data = json.loads((DATA / "megatron_scaling.json").read_text(encoding="utf-8"))
    weak = [MegatronRun(*row) for row in data["weak_rows"]]
    model = next(run for run in weak if run.parameters == 177e9)
    return [model._replace(gpus=gpus, reached=reached) for gpus, reached in data["strong_rows"]], weak


TOLERANCE = 0.1
"""Relative error up to which a prediction counts as met."""
CONTENTION, FITTED = 0.5, "7B, H100"
"""`Cluster.contention` of MosaicML's runs, and the curve that it was fitted to."""


def prediction_errors() -> dict[str, dict[str, float]]:
    """Return the relative error of the predicted seconds of each point, by source.

    Points that fixed a constant are left out. A rate that is too high by e has −e / (1 + e) too few seconds.
    """
    node, four_nodes = published_sweep(), published_sweep("b200x32")
    errors = {
        "all-reduce, 8 H200": _errors_by_size(fixed(node), node, fixing=node.nbytes[::2].tolist()),
        "all-reduce, 4 × 8 B200": _errors_by_size(fixed_on_two_points(four_nodes), four_nodes, fixing=[2**20, 2**34]),
    }
    for name, points in scaling_curves().items():
        if name != FITTED:
            of_machine = errors.setdefault(f"MosaicML, {points[0].machine}", {})
            for point, error in zip(points[1:], curve_errors(points, CONTENTION), strict=True):
                of_machine[f"{point.model} on {point.gpus}"] = 1 / (1 + error) - 1
    same_batch, growing = megatron_runs()
    megatron = {f"{run.parameters / 1e9:g}B on {run.gpus:,}": run for run in same_batch[1:] + growing}
    runs = {name: 1 / (1 + run.error()) - 1 for name, run in megatron.items()}
    return errors | {"Megatron-LM, H100": runs}


def _errors_by_size(cluster: Cluster, sweep: Sweep, fixing: list[int]) -> dict[str, float]:
    errors = predicted_sweep(cluster, sweep) / sweep.seconds - 1
    sizes = [f"{n >> 20} MiB" if n >> 20 else f"{n >> 10} KiB" for n in sweep.nbytes.tolist()]
    points = zip(sizes, sweep.nbytes.tolist(), errors.tolist(), strict=True)
    return {size: error for size, nbytes, error in points if nbytes not in fixing}


@in_style
def draw_errors(errors: Mapping[str, Mapping[str, float]], title: str) -> Picture:
    """Plot the errors of each source as points on a line, and name those beyond `TOLERANCE`.

    Errors beyond −40 % stand at that end of the axis, with their number.
    """
    figure, axes = new_figure(title, height=60 + 44 * len(errors))
    axes.axvspan(-100 * TOLERANCE, 100 * TOLERANCE, color=palette.tint(palette.COMPLETE, 0.18), zorder=0)
    missed, names = [], dict[tuple[float, int], str]()
    for place, (source, by_point) in enumerate(reversed(list(errors.items()))):
        for point, error in by_point.items():
            at, far = (max(100 * error, -40.0), place), abs(error) > TOLERANCE
            axes.plot(*at, "o", color=palette.EXPOSED if far else palette.INK, markersize=6, alpha=0.7)
            if far:
                missed.append(f"{source}, {point}: {error:+.0%}")
                label = f"{point} ({100 * error:.0f} %)" if at[0] == -40 else point
                names[at] = f"{names[at]}, {label}" if at in names else label
    for at, name in names.items():
        offset, side = ((0, -17), "left") if at[0] == -40 else ((0, 7), "center")
        axes.annotate(name, at, offset, textcoords="offset points", ha=side)
    axes.set_yticks(range(len(errors)), labels=list(errors)[::-1])
    axes.set(xlim=(-42, 22), ylim=(-0.6, len(errors) - 0.4), xlabel="error of the predicted seconds (%)")
    count = sum(map(len, errors.values()))
    return finish(figure, f"{count - len(missed)} of {count} within {TOLERANCE:.0%}; {'; '.join(missed)}.")
