"""Readers of pictures: the tests parse an SVG and find its frames, texts, bars and marks."""

from xml.etree import ElementTree

import matplotlib

from dpbook.collectives import Round, Schedule, all_gather, reduce_scatter
from dpbook.figures.card.svg import text_width

NS = "{http://www.w3.org/2000/svg}"
DOUBLE = Schedule(
    4, 1,
    [*(Round.of(worker, 0, 0, True) for worker in (1, 2, 2, 3)), Round.of(0, [1, 2, 3], 0, False)],
    name="rank 2 is asked twice",
)  # fmt: skip
EXTRA_ROUND = Schedule(4, 4, [*reduce_scatter(4).rounds, reduce_scatter(4).rounds[2], *all_gather(4).rounds])


def parse(picture):
    return ElementTree.fromstring(picture.svg)


def frames(film, kind="frame"):
    """Return the frames of a film in order, each as a group with its shared parts; or the groups under way to them."""
    root = parse(film)
    shared = {part.get("id"): part for part in root.find(f"{NS}defs")}
    found = [group for group in root.findall(f"{NS}g") if group.get("class") == kind]
    for group in found:
        for place, part in enumerate(group):
            if part.tag == f"{NS}use":
                group[place] = shared[part.get("href")[1:]]
    return found


def texts(root):
    """Return every line of text in the order in which it is drawn."""
    return ["".join(node.itertext()) for node in root.iter(f"{NS}text")]


def shows(picture, colour):
    """Return True if something in the picture has the colour."""
    return f'"{colour}"' in picture.svg


def outside(root):
    """Return texts and boxes that reach beyond the picture, by the same estimate of widths that lays it out."""
    _, _, width, height = map(float, root.get("viewBox").split())
    found = []
    turned = {id(t) for g in root.iter(f"{NS}g") if "rotate" in g.get("transform", "") for t in g.iter()}
    for node in root.iter(f"{NS}text"):
        content, size, x = node.text or "", float(node.get("font-size")), float(node.get("x"))
        bold, mono = node.get("font-weight") == "700", "mono" in node.get("font-family", "")
        length = text_width(content, size, bold=bold, mono=mono)
        left = x - length * {None: 0, "middle": 0.5, "end": 1}[node.get("text-anchor")]
        y = float(node.get("y"))
        moved = id(node) in turned or node.get("x") == "0"  # placed by a rotation or a motion
        if not moved and not (left >= 0 and left + length <= width + 0.5 and y - size >= 0 and y + size / 3 <= height):
            found.append(content)
    for node in root.iter(f"{NS}rect"):
        x, y = (float(node.get(name, 0)) for name in ("x", "y"))
        if x < 0 or y < 0 or x + float(node.get("width")) > width or y + float(node.get("height")) > height:
            found.append(ElementTree.tostring(node))
    return found


def overlapping(root):
    """Return pairs of texts on one line whose estimated boxes overlap by more than the estimate's slack."""
    boxes = []
    for node in root.iter(f"{NS}text"):
        if node.get("x") == "0":
            continue
        size, x, y = (float(node.get(name)) for name in ("font-size", "x", "y"))
        mono, bold = "mono" in node.get("font-family", ""), node.get("font-weight") == "700"
        length = 0.8 * text_width(node.text or "", size, bold=bold, mono=mono)
        left = x - length * {None: 0, "middle": 0.5, "end": 1}[node.get("text-anchor")]
        boxes.append((left, left + length, y - 0.7 * size, y, node.text))
    return [
        (a[4], b[4])
        for i, a in enumerate(boxes)
        for b in boxes[:i]
        if a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
    ]


def misplaced(root):
    """Return all that leaves the picture, and pairs of texts that lie on each other."""
    return outside(root) + overlapping(root)


def check_choices(explorer, contradiction=None):
    """Check that each choice of each knob, one knob after another, is readable and as high as the first picture.

    A ``contradiction``, the name of a knob and its choice, is answered by an error.
    """
    height = explorer.figure.height
    for name, knob in explorer.knobs.items():
        start = explorer.chosen[name]
        for choice in knob.values:
            if (name, choice) == contradiction:
                assert set(explorer.turned({name: choice})) == {"error"}
                continue
            explorer.set(**{name: choice})
            assert explorer.figure.height == height
            assert readable(explorer.figure), explorer.chosen
        explorer.set(**{name: start})


def check_plot(draw, most=20_000):
    """Check that a plot is small, readable, the same each time, and leaves matplotlib's settings as they were."""
    before = dict(matplotlib.rcParams)
    plot = draw()
    assert plot.svg == draw().svg
    assert dict(matplotlib.rcParams) == before
    assert len(plot.svg) < most
    assert readable(plot)


def bars(root, colour):
    """Return rectangles of a colour, without those of the legend, from the top and then from the left."""
    found = [node for node in root.iter(f"{NS}rect") if node.get("fill") == colour and not node.get("rx")]
    return sorted(found, key=lambda node: (float(node.get("y")), float(node.get("x"))))


def rings(root, stroke, fill):
    """Return the places of round marks, without those of the legend, which has at most one of a kind."""
    found = [node for node in root.iter(f"{NS}circle") if (node.get("stroke"), node.get("fill")) == (stroke, fill)]
    return [(float(node.get("cx")), float(node.get("cy"))) for node in found]


def readable(picture):
    """Return True if nothing leaves the picture, no text overlaps another, and none is smaller than 12 pixels."""
    root = parse(picture)
    apart = root.findall(f"{NS}g[@transform]") or [root]  # pictures that were stacked
    small = [node.text for node in root.iter(f"{NS}text") if float(node.get("font-size")) < 12]
    return picture.width <= 900 and not (outside(root) or small or any(map(overlapping, apart)))
