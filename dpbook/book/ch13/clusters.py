"""Explorer of the scaling wall, with knobs for model, cluster and batch."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from dpbook.book.ch13 import walls
from dpbook.book.ch13.walls import AxisRanges, Position
from dpbook.core import DpbookError, check_one_of
from dpbook.figures import Explorer, Knob, Picture
from dpbook.planning import (
    ACCELERATORS,
    LINKS,
    MODELS,
    STAGES,
    Algorithm,
    Cluster,
    Job,
    memory_per_rank,
)

EXPERTS: dict[str, dict[str, Any]] = {"DeepSeek-V3": {"parameters": 671 * 10**9, "active": 37 * 10**9}}
"""Mixtures of experts: DeepSeek-AI, "DeepSeek-V3 technical report", 2024. Their buckets are taken as equal."""
SEQUENCE, MAX_GPUS = 4096, 2**15
AXIS_RANGES = AxisRanges((4, MAX_GPUS), (1e-2, 1e4))
"""Ranges of the axes, fixed whatever knob is turned."""
WITHOUT_NVLS = ("RTX 4090", "A100 80 GB")
"""Accelerators without switches that add."""

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
"""Initial values of knobs that do not begin with their first value. DeepSeek-V3's published layout is 16 pipeline
stages, experts over 64 GPUs, 15,360 sequences of 4,096 tokens; here everything is cut as its experts are."""


FILMED = ("model", "nodes", "tokens", "algorithm", "stage")
"""Knobs that also turn without a kernel: all of them would have more than 10⁹ positions."""


def explore_scaling(preset: str = "70 B on 256 H100") -> Explorer:
    """Show step time, wall, tokens per second and memory, with knobs for model, GPUs, batch, ZeRO stage and more.

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
    knobs = [Knob(name, label, values, begin.get(name)) for name, (label, values) in choices.items()]
    return Explorer(_turned, knobs, FILMED)


def _turned(before: Mapping[str, Any] | None, **now: Any) -> Picture:
    position, last = _position(**now), None
    if before:
        with suppress(DpbookError):  # contradicting knobs had no picture
            last = _position(**before)
    return walls.draw(position.scaling, f"{now['model']} on {now['accelerator']}", AXIS_RANGES, position, last)


@lru_cache(maxsize=64)
def _position(
    model: str, nodes: int, tokens: int, accumulation: int, stage: int, itemsize: int, cut: int,
    algorithm: Algorithm, cap: int, accelerator: str, per_node: int, network: str, utilisation: float, wires: float,
) -> Position:  # fmt: skip
    used = "Ring" if stage else algorithm
    job = replace(_job(model, cap, itemsize, cut), accumulation=accumulation, stage=stage, algorithm=used)
    gpu, world = ACCELERATORS[accelerator], nodes * per_node
    cluster = Cluster(gpu, world, LINKS[network], per_node, utilisation=utilisation, wires=wires)
    batch = tokens if tokens > 0 else -tokens * world
    step = walls.one_step(job, cluster, batch, world)
    recipe = "fp32 gradients" if itemsize == 4 else "mixed"
    needed = memory_per_rank(job.parameters // cut, world // cut, stage, recipe).total
    speed = f"{world:,} GPUs: {step.tokens_per_second:,.0f} tokens/s, efficiency {step.efficiency:.0%}"
    fits = "fits" if needed <= gpu.memory else "DOES NOT FIT"
    room = f"{needed / 1e9:,.1f} of {gpu.memory / 1e9:,.0f} GB before activations: {fits}"
    read = batch * cut / (world * accumulation)
    odd = {
        f"ZeRO runs in rings, not by {algorithm}": stage and algorithm != "Ring",
        f"no switches that add on {accelerator}": not stage and algorithm == "NVLSTree" and accelerator in WITHOUT_NVLS,
        f"sequences are cut: {read:,.4g} of {SEQUENCE:,} tokens in a micro-batch": read < SEQUENCE,
    }
    warnings = "; ".join(words for words, holds in odd.items() if holds)
    first = max(per_node, cut)
    worlds = [first * 2**k for k in range(15) if first * 2**k <= MAX_GPUS]
    return Position(walls.scaling(job, cluster, batch, worlds), step, [speed, room, *([warnings] if warnings else [])])


@cache
def _job(model: str, cap: int, itemsize: int, cut: int) -> Job:
    """Return the job of a model. The cache saves the buckets, which take longest to find."""
    chosen: dict[str, Any] = {"context": SEQUENCE, "itemsize": itemsize, "cut": cut}
    return Job(**EXPERTS[model], cap=cap, **chosen) if model in EXPERTS else Job.of(MODELS[model], cap, **chosen)
