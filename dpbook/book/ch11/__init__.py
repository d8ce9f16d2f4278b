"""Chapter 11: Real multi-GPU. Bytes that a training run sends per rank and step, and their time over each link."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from dpbook.core import check_float, check_int, in_words, lazy_exports, palette
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card import MARGIN, Card, Key, Scale, axes, rect, seconds_in_words, text
from dpbook.planning import LINKS, MODELS, count_parameters, low_rank_adapters, sent_per_rank

if TYPE_CHECKING:
    from dpbook.book.ch11.loops import watch

__getattr__ = lazy_exports(__name__, watch="loops")


WIDTH, LEFT, RIGHT, TOP, ROW = 760, 186, 686, 88, 25
TIME = Scale(1e-5, 1e5, LEFT, RIGHT, log=True)
"""Seconds on the axis, fixed so that marks keep their places when a knob is turned."""
BETWEEN, INSIDE = Key("between nodes", palette.COMMUNICATION), Key("inside a node", palette.COMPLETE)
BEFORE = Key("last position", axes.GHOST, "ring")
ALL_PARAMETERS = 0  # rank of adapters that stands for none: all parameters are trained


def wire_bars(nbytes: float, title: str, per: str = "step", last: float | None = None) -> Picture:
    """Draw how long a rank takes to send ``nbytes`` over each link of `planning.LINKS`; the axis is logarithmic.

    ``per`` names the unit that sends them; ``last`` are the bytes at the slider's previous position, drawn faintly.
    Latency is left out, since it depends on the number of messages.
    """
    check_float("nbytes", nbytes, minimum=0)
    bottom, keys = TOP + len(LINKS) * ROW, [BETWEEN, INSIDE, *([] if last is None else [BEFORE])]
    card = Card(WIDTH, title)
    card.legend(map(axes.mark, keys))
    ticks = {second: seconds_in_words(second) for second in axes.decades(TIME.low, TIME.high / 10)}
    card.add(*axes.axis_across(TIME, bottom, ticks, f"time on the wire, per {per}", TOP - 8))
    for row, (name, link) in enumerate(LINKS.items()):
        y, x = TOP + (row + 0.5) * ROW, TIME.within(nbytes / link.bandwidth)
        colour = (INSIDE if name.startswith(("NVLink", "PCIe")) else BETWEEN).colour
        card.add(text(LEFT - 10, y + 4, name, 12, anchor="end"))
        card.add(rect(LEFT, y - 2, x - LEFT, 4, fill=colour))
        if last is not None:
            card.add(axes.ring(TIME.within(last / link.bandwidth), y, BEFORE.colour))
        card.add(axes.ring(x, y, colour, colour))
        card.add(text(WIDTH - MARGIN, y + 4, seconds_in_words(nbytes / link.bandwidth), 12, anchor="end"))
    times = "; ".join(f"{name}: {seconds_in_words(nbytes / link.bandwidth)}" for name, link in LINKS.items())
    return card.picture(bottom + 46, f"Time to send {in_words(nbytes, 'B')}: {times}.")


@cache
def trained_parameters(model: str, rank: int = ALL_PARAMETERS) -> int:
    """Return the trained parameters of a model of `planning.MODELS`: all, or adapters of ``rank`` on linear layers."""
    if check_int("rank", rank, 0) == ALL_PARAMETERS:
        return MODELS[model].parameters
    return count_parameters(low_rank_adapters(MODELS[model], rank))


def explore_wire() -> Explorer:
    """Show the bytes that a rank sends, with knobs for model, trained part, precision, accumulation and GPUs."""

    def draw(before: Mapping[str, Any] | None, **now: Any) -> Picture:
        nbytes, rank, syncs = _sent(**now), now["rank"], now["micro"] if now["forgotten"] else 1
        trained = f"LoRA r = {rank} on {now['model']}" if rank else f"all of {now['model']}"
        title = f"{trained}: each of {now['world']} ranks sends {in_words(nbytes, 'B')} per step"
        per = f"step: backwards synced {syncs} of {now['micro']}"
        return wire_bars(nbytes, title, per, _sent(**before) if before else None)

    knobs = [
        Knob("rank", "trained", {"all": ALL_PARAMETERS} | {f"LoRA r = {r}": r for r in (64, 16, 4)}, "LoRA r = 16"),
        Knob("itemsize", "gradients", {"fp32 (autocast)": 4, "bf16": 2}),
        Knob("micro", "micro-batches", {str(n): n for n in (1, 4, 16)}),
        Knob("forgotten", "no_sync", {"used": False, "forgotten": True}),
        Knob("world", "GPUs", {str(n): n for n in (2, 4, 8, 64)}),
        Knob("model", "model", {name: name for name in MODELS}, "Qwen3 4B"),
    ]
    return Explorer(draw, knobs)


def _sent(model: str, rank: int, itemsize: int, micro: int, forgotten: bool, world: int) -> float:
    """Return the bytes that a rank sends in a step."""
    syncs = micro if forgotten else 1
    return syncs * sent_per_rank(trained_parameters(model, rank), world, itemsize=itemsize)
