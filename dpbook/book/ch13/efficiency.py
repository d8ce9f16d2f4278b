"""What steps of several worlds are made of."""

from collections.abc import Sequence

from dpbook.core import InvalidArgument, in_words, palette
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, Card, Key, Scale, aside, axes, check_title, rect, text
from dpbook.planning import PredictedStep

WIDTH, LEFT, TOP, BOTTOM = 760, 70, 100, 300
PARTS = {
    "forward": Key("forward", palette.tint(palette.COMPUTATION, 0.55)),
    "backward": Key("backward", palette.COMPUTATION),
    "exposed": Key("exposed communication", palette.EXPOSED),
}


def scaling_bars(steps: Sequence[PredictedStep], title: str) -> Picture:
    """Stack what forward, backward and exposed communication take of 1 to 16 steps, by their worlds.

    What is not exposed is the efficiency.
    """
    if not 1 <= len(steps) <= 16 or not all(isinstance(step, PredictedStep) for step in steps):
        raise InvalidArgument("steps", steps, "1 to 16 steps, as planning.weak and planning.strong return them")
    check_title(title)
    up, wide = Scale(0, 1, BOTTOM, TOP), (WIDTH - LEFT - MARGIN) / len(steps)
    shown = [key for part, key in PARTS.items() if any(getattr(step, part) for step in steps)]
    card = Card(WIDTH, title)
    card.legend(map(axes.mark, shown))
    card.add(*axes.axis_up(up, LEFT, {fifth / 5: f"{20 * fifth} %" for fifth in range(6)}, WIDTH - MARGIN))
    for place, step in enumerate(steps):
        x, share = LEFT + wide * (place + 0.15), 0.0
        for part, key in PARTS.items():
            start, share = share, share + getattr(step, part) / step.seconds
            if share > start:
                card.add(rect(x, up(share), 0.7 * wide, up(start) - up(share), fill=key.colour))
        middle = LEFT + wide * (place + 0.5)
        card.add(text(middle, TOP - 8, in_words(step.seconds, "s"), 11, anchor="middle"))
        card.add(aside(middle, BOTTOM + 17, f"{step.world:,}", 11, anchor="middle"))
    label = "GPUs (above each bar: the time of a step; its height: shares of it)"
    card.add(aside(WIDTH - MARGIN, BOTTOM + 36, label, anchor="end"))
    told = "; ".join(f"{s.world:,}: {s.seconds:.3g} s, efficiency {s.efficiency:.0%}" for s in steps)
    return card.picture(BOTTOM + 46, f"Step time by number of GPUs: {told}.")
