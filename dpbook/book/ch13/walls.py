"""Scaling pictures: parts of steps by number of GPUs, and the wall, where more GPUs stop helping, with an explorer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil, floor, log10
from typing import Any, NamedTuple

from dpbook import planning
from dpbook.core import DpbookError, InvalidArgument, in_words, palette
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card import MARGIN, Card, Key, Scale, aside, axes, rect, text
from dpbook.planning import ACCELERATORS, LINKS, MODELS, STAGES, Algorithm, Cluster, Job, PredictedStep, memory_per_rank

BARS_WIDTH, BARS_LEFT, BARS_TOP, BARS_BOTTOM = 760, 70, 100, 300
STEP_PARTS = {
    "forward": Key("forward", palette.tint(palette.COMPUTATION, 0.55)),
    "backward": Key("backward", palette.COMPUTATION),
    "exposed": Key("exposed communication", palette.EXPOSED),
}


def scaling_bars(steps: Sequence[PredictedStep], title: str) -> Picture:
    """Stack the shares of forward, backward and exposed communication in 1 to 16 steps, by their worlds.

    The share that is not exposed is the efficiency.
    """
    if not 1 <= len(steps) <= 16 or not all(isinstance(step, PredictedStep) for step in steps):
        raise InvalidArgument("steps", steps, "1 to 16 steps, as planning.weak and planning.strong return them")
    up, wide = Scale(0, 1, BARS_BOTTOM, BARS_TOP), (BARS_WIDTH - BARS_LEFT - MARGIN) / len(steps)
    shown = [key for part, key in STEP_PARTS.items() if any(getattr(step, part) for step in steps)]
    card = Card(BARS_WIDTH, title)
    card.legend(map(axes.mark, shown))
    card.add(*axes.axis_up(up, BARS_LEFT, {fifth / 5: f"{20 * fifth} %" for fifth in range(6)}, BARS_WIDTH - MARGIN))
    for place, step in enumerate(steps):
        x, share = BARS_LEFT + wide * (place + 0.15), 0.0
        for part, key in STEP_PARTS.items():
            start, share = share, share + getattr(step, part) / step.seconds
            if share > start:
                card.add(rect(x, up(share), 0.7 * wide, up(start) - up(share), fill=key.colour))
        middle = BARS_LEFT + wide * (place + 0.5)
        card.add(text(middle, BARS_TOP - 8, in_words(step.seconds, "s"), anchor="middle"))
        card.add(aside(middle, BARS_BOTTOM + 17, f"{step.world:,}", anchor="middle"))
    label = "GPUs (above each bar: the time of a step; its height: shares of it)"
    card.add(aside(BARS_WIDTH - MARGIN, BARS_BOTTOM + 36, label, anchor="end"))
    values = "; ".join(f"{s.world:,}: {s.seconds:.3g} s, efficiency {s.efficiency:.0%}" for s in steps)
    return card.picture(BARS_BOTTOM + 46, f"Step time by number of GPUs: {values}.")


WIDTH, LEFT, RIGHT = 760, 80, 740
TIMES, SHARES = (324, 124), (440, 360)
"""Ends of the axes of step time and of efficiency, in pixels from the top."""
MAX_NOTES, NOTE_HEIGHT = 3, 19
"""Lines reserved for the notes of an explorer, and their height."""
LINES = {
    "step": Key("step", palette.INK, "line", 3),
    "computation": Key("computation alone, 1/N", palette.COMPUTATION, "line", 1.8),
    "communication": Key("communication alone", palette.COMMUNICATION, "line", 1.8, "7 4"),
    "weak": Key("step, weak scaling", palette.COMPLETE, "line", 2.4, "9 3 2 3"),
}
WALLS = {
    "backward": Key("sync takes as long as backward", palette.EXPOSED, "line", 2.5, "2 3"),
    "what hides it": Key("sync takes as long as what hides it", palette.EXPOSED, "line", 2.5, "2 3"),
    "all of compute": Key("as long as all of compute", palette.EXPOSED, "line", 1.2, "2 3"),
}
HERE, BEFORE = Key("you are here", palette.INK, "ring", inside=palette.INK), Key("last position", axes.GHOST, "ring")


class Scaling(NamedTuple):
    """Steps over growing ``worlds`` and at the walls.

    Attributes:
        worlds: numbers of GPUs, rising.
        steps: steps of one global batch.
        weak: steps with the same number of tokens on every GPU.
        walls: by name of what must hide the sync, the first world where the sync takes as long, or None.
    """

    worlds: Sequence[int]
    steps: Sequence[PredictedStep]
    weak: Sequence[PredictedStep]
    walls: dict[str, int | None]


class Position(NamedTuple):
    """Position of an explorer: its curves, the ``step`` of its world, and ``notes``, one per line."""

    scaling: Scaling
    step: PredictedStep
    notes: Sequence[str]


class Scales(NamedTuple):
    """Logarithmic scales of the number of GPUs (both plots) and of the step time (upper plot)."""

    across: Scale
    times: Scale


EFFICIENCY = Scale(0, 1, *SHARES)
"""Scale of the lower plot."""


def scaling(job: Job, cluster: Cluster, tokens: int, worlds: Sequence[int]) -> Scaling:
    """Predict the steps of ``worlds`` for ``tokens`` in the global batch; sequences may be cut.

    In weak scaling every GPU has as many tokens as it has at the cluster's world.
    """
    every = range(worlds[0], worlds[-1] + 1, max(cluster.per_node, job.cut))
    jobs = {"what hides it": job} if job.stage else {"backward": job, "all of compute": replace(job, window="all")}
    walls = {name: planning.wall(replace(one, context=tokens), cluster, 1, every) for name, one in jobs.items()}
    drawn = sorted({*worlds, *filter(None, walls.values())})  # without the walls, curves would bend too early
    steps = [one_step(job, cluster, tokens, world) for world in drawn]
    weak = [one_step(job, cluster, max(1, round(tokens * world / cluster.world)), world) for world in drawn]
    return Scaling(worlds, steps, weak, walls)


def one_step(job: Job, cluster: Cluster, tokens: int, world: int) -> PredictedStep:
    """Predict a step whose tokens form one long sequence, split over the ranks."""
    (step,) = planning.strong(replace(job, context=tokens), cluster, [world], 1, cut_sequences=True)
    return step


def scaling_wall(job: Job, cluster: Cluster, tokens: int, worlds: Sequence[int], title: str) -> Picture:
    """Draw step time, its parts and efficiency over ``worlds``, for ``tokens`` in the global batch.

    The axes of GPUs and seconds are logarithmic. The place of the wall follows the ``title``.
    """
    predicted = scaling(job, cluster, tokens, worlds)
    times = [time for step in predicted.steps for time in (step.seconds, step.compute, step.communication) if time]
    ends = 10 ** floor(log10(min(times))), 10 ** ceil(log10(max(times)))
    return draw(predicted, title, _scales(worlds[0], worlds[-1], ends))


def _scales(fewest: int, most: int, seconds: tuple[float, float]) -> Scales:
    return Scales(Scale(fewest, most, LEFT, RIGHT, log=True), Scale(*seconds, *TIMES, log=True))


def draw(
    predicted: Scaling, title: str, scales: Scales, here: Position | None = None, before: Position | None = None
) -> Picture:
    """Draw predicted steps on these axes; ``here`` and ``before`` are an explorer's positions."""
    wall = next(iter(predicted.walls.values()))
    title += f": the wall is at {wall:,} GPUs" if wall else f": no wall up to {predicted.worlds[-1]:,} GPUs"
    keys = [*LINES.values(), *(WALLS[name] for name in predicted.walls)]
    keys += [key for key, place in ((HERE, here), (BEFORE, before)) if place]
    card = Card(WIDTH, title)
    card.legend(map(axes.mark, keys))
    card.add(*_axes(scales))
    if before:
        card.add(*_curves(before.scaling, scales, {"step": LINES["step"]._replace(colour=axes.GHOST, width=1.5)}))
    card.add(*_curves(predicted, scales, LINES), *_walls(predicted, scales))
    if before:
        card.add(*_place(before.step, scales, BEFORE))
    if here:
        card.add(*_place(here.step, scales, HERE))
        for line, note in enumerate(here.notes):
            colour = palette.EXPOSED if "NOT" in note else None
            card.add(text(MARGIN, SHARES[0] + 58 + NOTE_HEIGHT * line, note, 13, bold=line < 2, fill=colour))
    height = SHARES[0] + (54 + NOTE_HEIGHT * MAX_NOTES if here else 46)
    described = [step for step in predicted.steps if step.world in predicted.worlds[::2]]
    values = "; ".join(f"{s.world:,}: {axes.seconds_in_words(s.seconds)}, {s.efficiency:.0%}" for s in described)
    at_walls = "".join(f"Sync = {name} at {at:,}. " for name, at in predicted.walls.items() if at)
    notes = "; ".join(here.notes) if here else ""
    return card.picture(height, f"{at_walls}Step time and efficiency by GPUs: {values}. {notes}".strip())


def _axes(scales: Scales) -> Iterator[str]:
    gpus = [int(scales.across.low) * 4**power for power in range(10)]
    gpus = [world for world in gpus if world <= scales.across.high]
    times = {seconds: axes.seconds_in_words(seconds) for seconds in axes.decades(scales.times.low, scales.times.high)}
    yield from axes.axis_up(scales.times, LEFT, times, RIGHT, "time of a step")
    yield from axes.axis_up(EFFICIENCY, LEFT, {0: "0 %", 0.5: "50 %", 1: "100 %"}, RIGHT, "efficiency")
    yield from axes.axis_across(scales.across, SHARES[0], {world: f"{world:,}" for world in gpus}, "GPUs", TIMES[1])


def _curves(predicted: Scaling, scales: Scales, lines: Mapping[str, Key]) -> Iterator[str]:
    """Draw the step times named in ``lines``, and the efficiency of the step."""
    seconds = {
        "weak": [(step.world, step.seconds) for step in predicted.weak],
        "computation": [(step.world, step.compute) for step in predicted.steps],
        "communication": [(step.world, step.communication) for step in predicted.steps if step.communication],
        "step": [(step.world, step.seconds) for step in predicted.steps],
    }
    curves = []
    for name, times in seconds.items():
        if name in lines and times:
            points = [(scales.across(world), scales.times(time)) for world, time in times]
            curves.append(axes.curve(points, lines[name]))
    yield axes.window(scales.across, scales.times, curves)
    shares = [(scales.across(step.world), EFFICIENCY(step.efficiency)) for step in predicted.steps]
    yield axes.curve(shares, lines["step"])


def _walls(predicted: Scaling, scales: Scales) -> Iterator[str]:
    """Draw a line at each wall, with its number of GPUs."""
    for row, (name, at) in enumerate(predicted.walls.items()):
        if at:
            x = scales.across.within(at)
            yield axes.curve([(x, TIMES[1]), (x, SHARES[0])], WALLS[name])
            anchor, side = ("end", -6) if x > RIGHT - 80 else (None, 6)
            style: dict[str, Any] = {"fill": palette.EXPOSED, "bold": not row, "halo": palette.PAPER}
            yield text(x + side, TIMES[1] + 14 + 16 * row, f"{at:,}", 12, anchor=anchor, **style)


def _place(step: PredictedStep, scales: Scales, key: Key) -> Iterator[str]:
    """Mark a step on both curves."""
    x = scales.across.within(step.world)
    yield rect(x - 0.5, TIMES[1], 1, SHARES[0] - TIMES[1], fill=key.colour)
    yield axes.ring(x, scales.times.within(step.seconds), key.colour, key.inside)
    yield axes.ring(x, EFFICIENCY(step.efficiency), key.colour, key.inside)


EXPERTS: dict[str, dict[str, Any]] = {"DeepSeek-V3": {"parameters": 671 * 10**9, "active": 37 * 10**9}}
"""Mixtures of experts: DeepSeek-AI, "DeepSeek-V3 technical report", 2024. Their buckets are taken as equal."""
SEQUENCE, MAX_GPUS = 4096, 2**15
EXPLORER_SCALES = _scales(4, MAX_GPUS, (1e-2, 1e4))
"""Axes of the explorer, fixed whatever knob is turned."""
WITHOUT_NVLS = ("RTX 4090", "A100 80 GB", "MI300X")
"""Accelerators without switches that add."""
OF_NVL72 = ("GB200", "GB300")
"""Accelerators of which up to 72 share one NVLink domain; nodes of the others have at most 16."""

FILMED = ("model", "nodes", "tokens", "algorithm", "stage")
"""Knobs that also turn without a kernel: all of them would have more than 10⁹ positions."""


def explore_scaling() -> Explorer:
    """Show step time, wall, tokens per second and memory, with knobs for model, GPUs, batch, ZeRO stage and more."""
    networks = [name for name in LINKS if not name.startswith(("NVLink", "PCIe"))]
    per_gpu = {f"{n:,} per GPU": -n for n in (1024, 4096, 16384)}
    in_all = {f"{n} Mi in all": n * 2**20 for n in (1, 4, 16, 60)}
    caps = {"25 MiB": 25 * 2**20, "100 MiB": 100 * 2**20, "1 GiB": 2**30, "one bucket": 10**15}
    knobs = [
        Knob("model", "model", {name: name for name in (*MODELS, *EXPERTS)}, "Llama-2 70B"),
        Knob("nodes", "nodes", {f"{2**k:,}": 2**k for k in range(12)}, "32"),
        Knob("tokens", "tokens of a step", per_gpu | in_all, "1 Mi in all"),
        Knob("accumulation", "micro-batches", {f"{n}": n for n in (1, 2, 4, 8, 16, 120)}),
        Knob("algorithm", "all-reduce, unsharded", {name: name for name in ("Tree", "NVLSTree", "Ring")}),
        Knob("stage", "sharding", {f"ZeRO-{s}" if s else "none": s for s in STAGES}),
        Knob("itemsize", "gradients", {"bf16": 2, "fp32": 4, "8 bits": 1}),
        Knob("cut", "a copy is cut over", {"1 GPU": 1, "8": 8, "128": 128, "1,024": 1024}),
        Knob("cap", "bucket cap", caps),
        Knob("accelerator", "GPU", {name: name for name in ACCELERATORS}, "H100 SXM"),
        Knob("per_node", "GPUs of a node", {"8": 8, "4": 4, "16": 16, "72 (NVL72)": 72}),
        Knob("network", "network per port", {name: name for name in networks}, "InfiniBand NDR 400 Gb/s"),
        Knob("utilisation", "share of the peak", {"50 %": 0.5, "47 %": 0.47, "40 %": 0.4}),
        Knob("wires", "share of the wires", {"100 %": 1.0, "77 %": 0.77, "60 %": 0.6}),
    ]
    return Explorer(_turned, knobs, FILMED)


def _turned(before: Mapping[str, Any] | None, **now: Any) -> Picture:
    position, last = _position(**now), None
    if before:
        with suppress(DpbookError):  # contradicting knobs had no picture
            last = _position(**before)
    return draw(position.scaling, f"{now['model']} on {now['accelerator']}", EXPLORER_SCALES, position, last)


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
    step = one_step(job, cluster, batch, world)
    recipe = "fp32 gradients" if itemsize == 4 else "mixed"
    needed = memory_per_rank(job.parameters // cut, world // cut, stage, recipe).total
    speed = f"{world:,} GPUs: {step.tokens_per_second:,.0f} tokens/s, efficiency {step.efficiency:.0%}"
    fits = "fits" if needed <= gpu.memory else "DOES NOT FIT"
    room = f"{needed / 1e9:,.1f} of {gpu.memory / 1e9:,.0f} GB before activations: {fits}"
    read = batch * cut / (world * accumulation)
    odd = {
        f"ZeRO runs in rings, not by {algorithm}": stage and algorithm != "Ring",
        f"no switches that add on {accelerator}": not stage and algorithm == "NVLSTree" and accelerator in WITHOUT_NVLS,
        f"no node has {per_node} {accelerator}": per_node > 16 and accelerator not in OF_NVL72,
        f"sequences are cut: {read:,.4g} of {SEQUENCE:,} tokens in a micro-batch": read < SEQUENCE,
    }
    warnings = "; ".join(words for words, holds in odd.items() if holds)
    first = max(per_node, cut)
    worlds = [first * 2**k for k in range(15) if first * 2**k <= MAX_GPUS]
    return Position(scaling(job, cluster, batch, worlds), step, [speed, room, *([warnings] if warnings else [])])


@cache
def _job(model: str, cap: int, itemsize: int, cut: int) -> Job:
    """Return the job of a model. The cache saves the buckets, which take longest to find."""
    chosen: dict[str, Any] = {"context": SEQUENCE, "itemsize": itemsize, "cut": cut}
    return Job(**EXPERTS[model], cap=cap, **chosen) if model in EXPERTS else Job.of(MODELS[model], cap, **chosen)
