"""Where more GPUs stop helping: step time against their number, and an explorer of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

import numpy as np

from dpbook import planning
from dpbook.core import check_one_of, in_words
from dpbook.figures import Explorer, Knob, Plot
from dpbook.figures.card import finish, in_style, new_figure, palette
from dpbook.planning import ACCELERATORS, LINKS, MODELS, STAGES, Algorithm, Cluster, Job, Step, memory_per_rank

EXPERTS: dict[str, dict[str, Any]] = {"DeepSeek-V3": {"parameters": 671 * 10**9, "active": 37 * 10**9}}
"""Mixtures of experts: DeepSeek-AI, "DeepSeek-V3 technical report", 2024. Their buckets count as equal."""
SEQUENCE, MOST_GPUS = 4096, 2**15
WITHOUT_NVLS = ("RTX 4090", "A100 80 GB")
"""Accelerators whose switches, if they have any, do not add."""

PRESETS: dict[str, dict[str, str]] = {
    "70 B on 256 H100": {"model": "Llama-2 70B", "nodes": "32", "tokens": "1 Mi in all"},
    "7 B, ZeRO-1": {"model": "Llama-2 7B", "nodes": "8", "stage": "ZeRO-1", "algorithm": "Ring"},
    "70 B, FSDP": {
        "model": "Llama-2 70B", "nodes": "32", "stage": "ZeRO-3", "tokens": "4 Mi in all", "algorithm": "Ring",
    },
    "DeepSeek-V3": {
        "model": "DeepSeek-V3", "accelerator": "H800", "nodes": "256", "tokens": "60 Mi in all", "stage": "ZeRO-1",
        "cut": "1,024", "accumulation": "120", "itemsize": "fp32", "utilisation": "47 %",
        "algorithm": "Ring",
    },
}  # fmt: skip
"""What the explorer begins with, where it is not the first value of a knob. DeepSeek-V3's published layout: 16 pipeline
stages, experts over 64 GPUs, 15,360 sequences of 4,096 tokens; here everything is cut as its experts are."""


@in_style
def scaling_wall(job: Job, cluster: Cluster, tokens: int, worlds: Sequence[int], title: str, note: str = "") -> Plot:
    """Plot step time and its parts over ``worlds``, for ``tokens`` in the global batch; sequences may be cut.

    Both axes are logarithmic. Thin green is weak scaling: every GPU as many tokens as at the cluster's world. Where the
    wall is follows the ``title``; ``note`` stands under the axes.
    """
    steps = [_step(job, cluster, tokens, world) for world in worlds]
    weak = [_step(job, cluster, max(1, round(tokens * world / cluster.world)), world) for world in worlds]
    every = range(worlds[0], worlds[-1] + 1, max(cluster.per_node, job.cut))
    behind = {"what hides it": job} if job.stage else {"backward": job, "all of compute": replace(job, window="all")}
    walls = {name: planning.wall(replace(at, context=tokens), cluster, 1, every) for name, at in behind.items()}
    wall = next(iter(walls.values()))
    title += f": the wall is at {wall:,} GPUs" if wall else f": no wall up to {worlds[-1]:,} GPUs"
    figure, axes = new_figure(title, layout=None)
    figure.subplots_adjust(left=0.11, right=0.98, bottom=0.24, top=0.78)
    lines = {
        "step": ([s.seconds for s in steps], palette.INK, "-", 2.6),
        "computation alone, 1/N": ([s.compute for s in steps], palette.COMPUTATION, "-", 1.4),
        "communication alone": ([s.communication for s in steps], palette.COMMUNICATION, "--", 1.4),
        "step, weak scaling": ([s.seconds for s in weak], palette.COMPLETE, "-.", 1.4),
    }
    for name, (seconds, colour, dashes, width) in lines.items():
        positive = np.where(np.array(seconds) > 0, seconds, np.nan)
        axes.plot(worlds, positive, dashes, color=colour, linewidth=width, label=name)
    for (name, at), width in zip(walls.items(), (2.0, 1.0), strict=False):
        if at:
            axes.axvline(at, color=palette.EXPOSED, linewidth=width, linestyle=":", label=f"sync = {name}: {at:,}")
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="seconds per step")
    axes.set_xticks(worlds[::2], labels=[f"{world:,}" for world in worlds[::2]], fontsize=8.5)
    axes.xaxis.minorticks_off()
    axes.set_title(title, pad=40)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, fontsize=8.5, borderaxespad=0.1)
    colour = palette.EXPOSED if "NOT" in note else palette.INK
    figure.text(0.02, 0.015, fill(note, 96), fontsize=8.2, fontweight="bold", color=colour)
    told = "; ".join(f"{s.world:,}: {in_words(s.seconds, 's')}, {s.efficiency:.0%}" for s in steps[::2])
    at_walls = "".join(f" Sync = {name} at {at:,}." for name, at in walls.items() if at)
    return finish(figure, f"{title}.{at_walls} Step time and efficiency by GPUs: {told}. {note}".strip())


def _step(job: Job, cluster: Cluster, tokens: int, world: int) -> Step:
    """The tokens as one long sequence, of which each rank has its part."""
    (step,) = planning.strong(replace(job, context=tokens), cluster, [world], 1, cut_sequences=True)
    return step


def explore_scaling(preset: str = "70 B on 256 H100") -> Explorer:
    """Turn model, GPUs, batch, ZeRO stage and more, and see step time, wall, tokens per second and what fits.

    ``preset`` is one of `PRESETS`.
    """
    check_one_of("preset", preset, PRESETS)
    networks = [name for name in LINKS if not name.startswith(("NVLink", "PCIe"))]
    per_gpu = {f"{n:,} per GPU": -n for n in (1024, 4096, 16384)}
    in_all = {f"{n} Mi in all": n * 2**20 for n in (1, 4, 16, 60)}
    begin = {"nodes": "32", "accelerator": "H100 SXM", "network": "InfiniBand NDR 400 Gb/s", "tokens": "4,096 per GPU"}
    choices: dict[str, tuple[str, Mapping[str, Any]]] = {
        "model": ("model", {name: name for name in (*MODELS, *EXPERTS)}),
        "nodes": ("nodes", {f"{2**k:,}": 2**k for k in range(12)}),
        "tokens": ("tokens of a step", per_gpu | in_all),
        "accumulation": ("micro-batches", {f"{n}": n for n in (1, 2, 4, 8, 16, 120)}),
        "algorithm": ("all-reduce, unsharded", {name: name for name in ("Tree", "NVLSTree", "Ring")}),
        "stage": ("sharding", {f"ZeRO-{s}" if s else "none": s for s in STAGES}),
        "itemsize": ("gradients", {"bf16": 2, "fp32": 4, "8 bits": 1}),
        "cut": ("a copy is cut over", {"1 GPU": 1, "8": 8, "128": 128, "1,024": 1024}),
        "cap": ("bucket cap", {"25 MiB": 25 * 2**20, "100 MiB": 100 * 2**20, "1 GiB": 2**30, "one bucket": 10**15}),
        "accelerator": ("GPU", {name: name for name in ACCELERATORS}),
        "per_node": ("GPUs of a node", {"8": 8, "4": 4, "16": 16, "72 (NVL72)": 72}),
        "network": ("network per port", {name: name for name in networks}),
        "utilisation": ("share of the peak", {"50 %": 0.5, "47 %": 0.47, "40 %": 0.4}),
        "wires": ("share of the wires", {"100 %": 1.0, "77 %": 0.77, "60 %": 0.6}),
    }
    begin |= PRESETS[preset]
    return Explorer(_draw, [Knob(name, label, values, begin.get(name)) for name, (label, values) in choices.items()])


def _draw(
    model: str, nodes: int, tokens: int, accumulation: int, stage: int, itemsize: int, cut: int,
    algorithm: Algorithm, cap: int, accelerator: str, per_node: int, network: str, utilisation: float, wires: float,
) -> Plot:  # fmt: skip
    chosen: dict[str, Any] = {
        "context": SEQUENCE, "itemsize": itemsize, "accumulation": accumulation, "stage": stage, "cut": cut,
        "algorithm": "Ring" if stage else algorithm,
    }  # fmt: skip
    job = Job(**EXPERTS[model], cap=cap, **chosen) if model in EXPERTS else Job.of(MODELS[model], cap, **chosen)
    gpu, world = ACCELERATORS[accelerator], nodes * per_node
    cluster = Cluster(gpu, world, LINKS[network], per_node, utilisation=utilisation, wires=wires)
    batch = tokens if tokens > 0 else -tokens * world
    step = _step(job, cluster, batch, world)
    recipe = "fp32 gradients" if itemsize == 4 else "mixed"
    kept = memory_per_rank(job.parameters // cut, world // cut, stage, recipe).total
    speed = f"{world:,} GPUs: {step.tokens_per_second:,.0f} tokens/s, efficiency {step.efficiency:.0%}"
    fits = "fits" if kept <= gpu.memory else "DOES NOT FIT"
    note = f"{speed}; {kept / 1e9:,.1f} of {gpu.memory / 1e9:,.0f} GB before activations: {fits}"
    read = batch * cut / (world * accumulation)
    odd = {
        f"ZeRO runs in rings, not by {algorithm}": stage and algorithm != "Ring",
        f"no switches that add on {accelerator}": not stage and algorithm == "NVLSTree" and accelerator in WITHOUT_NVLS,
        f"sequences are cut: {read:,.4g} of {SEQUENCE:,} tokens in a micro-batch": read < SEQUENCE,
    }
    note = "; ".join([note, *(words for words, holds in odd.items() if holds)])
    first = max(per_node, cut)
    worlds = [first * 2**k for k in range(15) if first * 2**k <= MOST_GPUS]
    return scaling_wall(job, cluster, batch, worlds, f"{model} on {accelerator}", note)
