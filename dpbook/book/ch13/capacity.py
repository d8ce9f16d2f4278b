"""What a cluster will do: memory against a device's limit, and step times as the world grows."""

from collections.abc import Mapping, Sequence

import numpy as np

from dpbook.core import InvalidArgument, check_float, in_words
from dpbook.figures import Explorer, Knob, Plot
from dpbook.figures.card import check_named, finish, in_style, new_figure, palette
from dpbook.planning import ACCELERATORS, MODELS, RECIPES, Memory, Step, memory_per_rank

PARTS = {
    "weights": palette.COMPUTATION,
    "gradients": palette.COMMUNICATION,
    "optimizer": palette.PARTIAL,
    "buckets": palette.tint(palette.COMMUNICATION, 0.45),
    "activations": palette.COMPLETE,
}
WORLDS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@in_style
def memory_bars(memories: Mapping[str, Memory], capacity: float, title: str) -> Plot:
    """Stack what each of up to 8 named setups keeps on a rank, against the ``capacity`` (bytes) of its device."""
    check_float("capacity", capacity, above=0)
    check_named("memories", memories, 8, Memory, "1 to 8 Memory by name")
    figure, axes = new_figure(title)
    figure.set_figheight(1.5 + 0.42 * len(memories))
    left = np.zeros(len(memories))
    for part, colour in PARTS.items():
        width = np.array([getattr(memory, part) for memory in memories.values()]) / 1e9
        if width.any():
            axes.barh(range(len(memories)), width, left=left, color=colour, label=part, height=0.62)
        left += width
    axes.axvline(capacity / 1e9, color=palette.EXPOSED, linewidth=2, linestyle="--")
    axes.text(capacity / 1e9, -0.62, f"{capacity / 1e9:,.0f} GB ", color=palette.EXPOSED, fontweight="bold", ha="right")
    for row, total in enumerate(left):
        fits = "fits" if total * 1e9 <= capacity else "does not fit"
        legible = {"facecolor": palette.PAPER, "edgecolor": "none", "pad": 0}  # on the line of the capacity
        axes.text(total, row, f" {total:,.1f} GB, {fits}", va="center", fontsize=9, bbox=legible)
    axes.set(xlabel="GB per rank", xlim=(0, 1.32 * max(*left, capacity / 1e9)), ylim=(len(memories) - 0.5, -0.95))
    axes.set_yticks(range(len(memories)), labels=list(memories))
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right", fontsize=8.5)
    told = "; ".join(f"{name}: {memory.total / 1e9:,.1f} GB" for name, memory in memories.items())
    return finish(figure, f"{title}. Per rank, of {capacity / 1e9:,.0f} GB: {told}.")


@in_style
def scaling_bars(steps: Sequence[Step], title: str) -> Plot:
    """Stack what forward, backward and exposed communication take of 1 to 16 steps, by their worlds.

    What is not exposed is the efficiency.
    """
    if not 1 <= len(steps) <= 16 or not all(isinstance(step, Step) for step in steps):
        raise InvalidArgument("steps", steps, "1 to 16 Step, as planning.weak and planning.strong return them")
    figure, axes = new_figure(title, layout=None)
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.15, top=0.88)
    places, bottom = range(len(steps)), np.zeros(len(steps))
    light, full = palette.tint(palette.COMPUTATION, 0.55), palette.COMPUTATION
    labels = {"forward": "forward", "backward": "backward", "exposed": "exposed communication"}
    for (part, label), colour in zip(labels.items(), (light, full, palette.EXPOSED), strict=True):
        height = np.array([100 * getattr(step, part) / step.seconds for step in steps])
        axes.bar(places, height, bottom=bottom, color=colour, label=label if height.any() else None, width=0.7)
        bottom += height
    for place, step in enumerate(steps):
        axes.text(place, 101, in_words(step.seconds, "s"), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(places, labels=[f"{step.world:,}" for step in steps], fontsize=9)
    axes.set(xlabel="GPUs (above each bar: time of a step)", ylabel="share of the step (%)", ylim=(0, 122))
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper center", ncols=3, fontsize=8.5)
    told = "; ".join(f"{s.world:,}: {s.seconds:.3g} s, efficiency {s.efficiency:.0%}" for s in steps)
    return finish(figure, f"{title}. Step time by number of GPUs: {told}.")


def explore_memory() -> Explorer:
    """Turn model, GPU, number of ranks and recipe, and see which ZeRO stage fits (activations left out)."""

    def draw(model: str, accelerator: str, world: int, recipe: str) -> Plot:
        stages = ("plain", "ZeRO-1", "ZeRO-2", "ZeRO-3")
        parameters, capacity = MODELS[model].parameters, ACCELERATORS[accelerator].memory
        memories = {name: memory_per_rank(parameters, world, s, recipe) for s, name in enumerate(stages)}
        fitting = [name for name, memory in memories.items() if memory.total <= capacity]
        found = f"{fitting[0]} is enough" if fitting else "nothing fits"
        return memory_bars(memories, capacity, f"{model} on {world:,} × {accelerator}: {found}")

    knobs = [
        Knob("world", "GPUs", {f"{world:,}": world for world in (1, 2, 4, *WORLDS)}, "8"),
        Knob("model", "model", {name: name for name in MODELS}),
        Knob("accelerator", "GPU", {name: name for name in ACCELERATORS}, "H100 SXM"),
        Knob("recipe", "recipe", {name: name for name in RECIPES}),
    ]
    return Explorer(draw, knobs)
