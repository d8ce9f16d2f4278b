"""What steps of several worlds are made of."""

from collections.abc import Sequence

from dpbook.core import InvalidArgument, in_words
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, Key, Scale, axes, check_title, heading, palette, rect, text
from dpbook.planning import Step

WIDTH, LEFT, TOP, BOTTOM = 760, 70, 100, 300
PARTS = {
    "forward": Key("forward", palette.tint(palette.COMPUTATION, 0.55)),
    "backward": Key("backward", palette.COMPUTATION),
    "exposed": Key("exposed communication", palette.EXPOSED),
}


def scaling_bars(steps: Sequence[Step], title: str) -> Picture:
    """Stack what forward, backward and exposed communication take of 1 to 16 steps, by their worlds.

    What is not exposed is the efficiency.
    """
    if not 1 <= len(steps) <= 16 or not all(isinstance(step, Step) for step in steps):
        raise InvalidArgument("steps", steps, "1 to 16 Step, as planning.weak and planning.strong return them")
    check_title(title)
    up, wide = Scale(0, 1, BOTTOM, TOP), (WIDTH - LEFT - MARGIN) / len(steps)
    shown = [key for part, key in PARTS.items() if any(getattr(step, part) for step in steps)]
    body = [heading(WIDTH, 30, title), *axes.legend(shown, MARGIN, 56, WIDTH)]
    body += axes.axis_up(up, LEFT, {fifth / 5: f"{20 * fifth} %" for fifth in range(6)}, WIDTH - MARGIN)
    for place, step in enumerate(steps):
        x, share = LEFT + wide * (place + 0.15), 0.0
        for part, key in PARTS.items():
            start, share = share, share + getattr(step, part) / step.seconds
            if share > start:
                body.append(rect(x, up(share), 0.7 * wide, up(start) - up(share), fill=key.colour))
        middle = LEFT + wide * (place + 0.5)
        body.append(text(middle, TOP - 8, in_words(step.seconds, "s"), 11, anchor="middle"))
        body.append(text(middle, BOTTOM + 17, f"{step.world:,}", 11, anchor="middle", fill=palette.MUTED))
    label = "GPUs (above each bar: the time of a step; its height: shares of it)"
    body.append(text(WIDTH - MARGIN, BOTTOM + 36, label, 12, anchor="end", fill=palette.MUTED))
    told = "; ".join(f"{s.world:,}: {s.seconds:.3g} s, efficiency {s.efficiency:.0%}" for s in steps)
    return Picture(WIDTH, BOTTOM + 46, body, f"{title}. Step time by number of GPUs: {told}.")
