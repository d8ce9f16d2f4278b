"""What a training run puts on the wire: bytes per rank and step, and how long they take over each kind of link."""

from dpbook.core import check_float, check_int, in_words
from dpbook.figures import Explorer, Knob, Plot
from dpbook.figures.card import finish, in_style, new_figure, palette
from dpbook.planning import LINKS, MODELS, count_parameters, low_rank_adapters, sent_per_rank

SHORTEST, LONGEST = 1e-6, 3e5
"""Seconds at the ends of the axis: fixed, so that bars keep their place when a knob is turned."""
EVERYTHING = 0
"""As a rank of adapters: none, all parameters are trained."""


@in_style
def wire_bars(nbytes: float, title: str, per: str = "step") -> Plot:
    """Plot how long a rank takes to send ``nbytes`` over each link of `planning.LINKS`; the axis is logarithmic.

    ``per`` says in words what sends them. Latency is left out: it depends on the number of messages.
    """
    check_float("nbytes", nbytes, minimum=0)
    seconds = {name: nbytes / link.bandwidth for name, link in LINKS.items()}
    figure, axes = new_figure(title)
    axes.set_title(title, x=-0.33)  # above the names of the links: it is a long one
    for row, (name, needed) in enumerate(seconds.items()):
        colour = palette.COMPLETE if name.startswith(("NVLink", "PCIe")) else palette.COMMUNICATION
        axes.barh(row, max(needed - SHORTEST, 0), left=SHORTEST, color=colour, height=0.62)
        axes.text(max(needed, SHORTEST), row, f" {_seconds(needed)}", va="center", fontsize=9)
    for colour, label in ((palette.COMMUNICATION, "between nodes"), (palette.COMPLETE, "inside a node")):
        axes.barh(0, 0, color=colour, label=label)
    axes.set(xscale="log", xlim=(SHORTEST, LONGEST), ylim=(len(LINKS) - 0.4, -0.6))
    axes.set_xlabel(f"time on the wire, per {per}")
    powers = range(-6, 5, 2)
    axes.set_xticks([10.0**power for power in powers], labels=[_seconds(10.0**power) for power in powers])
    axes.minorticks_off()
    axes.set_yticks(range(len(LINKS)), labels=list(LINKS), fontsize=9)
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right", fontsize=8.5)
    told = "; ".join(f"{name}: {_seconds(needed)}" for name, needed in seconds.items())
    return finish(figure, f"{title}. Time to send {in_words(nbytes, 'B')}: {told}.")


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 1000 else in_words(value, "s")


def trained_parameters(model: str, rank: int = EVERYTHING) -> int:
    """Parameters of `planning.MODELS` that have gradients: all, or adapters of ``rank`` on every linear layer."""
    if check_int("rank", rank, 0) == EVERYTHING:
        return MODELS[model].parameters
    return count_parameters(low_rank_adapters(MODELS[model], rank))


def explore_wire() -> Explorer:
    """Turn model, what is trained, precision of the gradients, accumulation and GPUs, and see what a rank sends."""

    def draw(model: str, rank: int, itemsize: int, micro: int, forgotten: bool, world: int) -> Plot:
        syncs = micro if forgotten else 1
        nbytes = syncs * sent_per_rank(trained_parameters(model, rank), world, itemsize=itemsize)
        trained = f"LoRA r = {rank} on {model}" if rank else f"all of {model}"
        title = f"{trained}: each of {world} ranks sends {in_words(nbytes, 'B')} per step"
        return wire_bars(nbytes, title, f"step: backwards synced {syncs} of {micro}")

    knobs = [
        Knob("rank", "trained", {"all": EVERYTHING} | {f"LoRA r = {r}": r for r in (64, 16, 4)}, "LoRA r = 16"),
        Knob("itemsize", "gradients", {"fp32 (autocast)": 4, "bf16": 2}),
        Knob("micro", "micro-batches", {str(n): n for n in (1, 4, 16)}),
        Knob("forgotten", "no_sync", {"used": False, "forgotten": True}),
        Knob("world", "GPUs", {str(n): n for n in (2, 4, 8, 64)}),
        Knob("model", "model", {name: name for name in MODELS}, "Qwen3 4B"),
    ]
    return Explorer(draw, knobs)
