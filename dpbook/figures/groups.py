"""The groups of a mesh: in each dimension, who shares the work with whom, and whether it stays inside a node."""

from dpbook.core import InvalidArgument, check_int, palette, plural
from dpbook.figures.card.card import Card, box
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.plot import check_title
from dpbook.figures.card.svg import MARGIN, aside, rect, text
from dpbook.planning import Mesh

MOST_RANKS, MOST_DIMENSIONS = 32, 5
LEFT, RIGHT, TOP = 84, 150, 84
GAP, CELL, HIGH, ROW = 14, 40, 38, 58
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"


def draw_groups(mesh: Mesh, per_node: int, rank: int, title: str) -> Picture:
    """Draw every rank of ``mesh`` once per dimension, with the letter of its group; that of ``rank`` is marked.

    Nodes of ``per_node`` ranks are framed. Up to 32 ranks and 5 dimensions; ``title`` states the finding. Raises
    `InvalidArgument`.
    """
    if not isinstance(mesh, Mesh) or mesh.world > MOST_RANKS or len(mesh.sizes) > MOST_DIMENSIONS:
        raise InvalidArgument("mesh", mesh, f"a Mesh of at most {MOST_RANKS} ranks and {MOST_DIMENSIONS} dimensions")
    check_int("per_node", per_node, 1)
    check_int("rank", rank, 0, mesh.world - 1)
    check_title(title)
    width = min(CELL, (1000 - LEFT - RIGHT) / mesh.world)
    places = [LEFT + r * width + r // per_node * GAP for r in range(mesh.world)]
    right = places[-1] + width
    whole = max(right + RIGHT, 560)
    card = Card(whole, title)
    card.add(*_nodes(mesh, per_node, places, width))
    told = []
    for row, name in enumerate(mesh.sizes):
        y = TOP + row * ROW
        card.add(*_row(mesh, name, rank, y, places, width))
        nodes = mesh.nodes_per_group(per_node, name)
        reach = "inside a node" if nodes == 1 else f"over {nodes} nodes"
        card.add(aside(right + 16, y + HIGH / 2 + 4, reach, room=RIGHT - 24))
        told.append(f"{name}: {', '.join(map(str, mesh.group(rank, name)))}, {reach}")
    groups = f"{mesh!r}, {per_node} in a node. The groups of rank {rank}: {'; '.join(told)}."
    return card.picture(TOP + len(mesh.sizes) * ROW + 4, groups)


def _nodes(mesh: Mesh, per_node: int, places: list[float], width: float) -> list[str]:
    """A frame around each node, with its number above."""
    parts = []
    for node, first in enumerate(range(0, mesh.world, per_node)):
        x, end = places[first], places[min(first + per_node, mesh.world) - 1] + width
        frame = x - 4, TOP - 10, end - x + 8, len(mesh.sizes) * ROW - 2
        parts.append(rect(*frame, rx=8, fill="none", stroke=palette.MUTED, stroke_dasharray="5 4"))
        label = f"node {node}" if end - x >= 44 else str(node)
        parts.append(aside((x + end) / 2, TOP - 18, label, anchor="middle"))
    return parts


def _row(mesh: Mesh, name: str, rank: int, y: float, places: list[float], width: float) -> list[str]:
    """One dimension: its name and size, and all ranks."""
    groups = mesh.groups(name).tolist()
    letter = {r: LETTERS[number] for number, group in enumerate(groups) for r in group}
    parts = [
        text(MARGIN, y + 17, name, 14, bold=True, room=LEFT - 30),
        aside(MARGIN, y + 33, plural(mesh.sizes[name], "rank"), 11, room=LEFT - 30),
    ]
    for r, x in enumerate(places):
        mine, middle = letter[r] == letter[rank], x + width / 2
        parts += [
            box(x + 2, y, width - 4, HIGH, palette.COMMUNICATION if mine else None, 0.3, r == rank),
            text(middle, y + 16, str(r), 12, anchor="middle", bold=r == rank),
            text(
                middle, y + 32, letter[r], 11, anchor="middle", bold=mine, fill=palette.INK if mine else palette.MUTED
            ),
        ]
    return parts
