"""Overviews of ranks: a whole schedule with every message as an arrow, and the groups of a mesh."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpbook.collectives import Schedule, Traffic, count
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, bytes_in_words, check_int, palette, plural
from dpbook.figures.card.picture import Card, Mark, Picture, box
from dpbook.figures.card.svg import MARGIN, arrow, aside, circle, line, number, rect, text, towards
from dpbook.figures.schedules.states import Kind, State, describe_message, kind_name, replay, schedule_name, sentence
from dpbook.figures.schedules.table import EDGE, FILL, badge
from dpbook.planning import Mesh

MAX_RANKS, MAX_ROUNDS = 16, 32
LEFT, PANEL_HEAD, RADIUS = 92, 46, 7
"""Pixels: room for the names of ranks, for the name of a schedule, and the radius of a bead."""
MEANING: dict[Kind, str] = {
    "own": "own only", "partial": "partial", "complete": "complete", "fault": "counted twice", "unknown": "nothing",
}  # fmt: skip


@dataclass(frozen=True)
class _Panel:
    schedule: Schedule
    states: list[State]
    traffic: Traffic
    nbytes: int

    @property
    def pitch(self) -> float:
        return 28 if self.schedule.world <= 8 else 21

    @property
    def name(self) -> str:
        return kind_name(self.schedule)

    @property
    def load(self) -> str:
        """Bytes that the busiest rank sends or receives, in units of the buffer."""
        return f"{number(self.traffic.busiest_bytes / self.nbytes)} × the buffer"

    @property
    def numbers(self) -> str:
        rounds, messages = plural(self.traffic.rounds, "round"), plural(self.traffic.messages, "message", ",")
        busiest, whole = bytes_in_words(self.traffic.busiest_bytes), bytes_in_words(self.nbytes)
        return f"{rounds}, {messages}; busiest rank: {busiest} sent or received, {self.load} of {whole}"


def draw_overview(*schedules: Schedule, title: str | None = None) -> Picture:
    """Draw all rounds of one or more schedules, one below the other, on one scale of rounds.

    A rank's circle shows the worst of its chunks after the round: it is complete if all of them are. Below each name
    are rounds, messages, and bytes for buffers of a million float32 elements, or the only size that fits. ``title``
    should state the finding. Raises `InvalidArgument` for more than 16 ranks or 32 rounds.
    """
    if not schedules:
        raise InvalidArgument("schedules", schedules, "at least one schedule")
    panels = [_panel(schedule) for schedule in schedules]
    most_rounds = max(1, *(panel.traffic.rounds for panel in panels))
    step = min(96.0, max(26.0, 640 / most_rounds))
    width = max(640.0, LEFT + most_rounds * step + MARGIN + RADIUS)
    card = Card(width, _finding(panels) if title is None else title)
    for panel in panels:
        card.add(*_draw(panel, card.y + 14, step, width - 2 * MARGIN))
        card.y += round(PANEL_HEAD + panel.pitch * panel.schedule.world + 30)
    card.y += 14
    card.legend(_marks(panels))
    alt, rounds = [], []
    for panel in panels:
        name = sentence(schedule_name(panel.schedule))
        alt.append(f"{name}: {panel.numbers}.")
        for state in panel.states[1:]:
            messages = (describe_message(message, panel.schedule.n_chunks) for message in state.messages)
            rounds.append(f"{name}, round {state.index}: {'; '.join(messages)}.")
    return card.picture(card.y + 8, " ".join(alt), " ".join(rounds))


def _panel(schedule: Schedule) -> _Panel:
    check_schedule(schedule)
    check_int(f"world of {schedule.name}", schedule.world, 1, MAX_RANKS)
    check_int(f"number of rounds of {schedule.name}", len(schedule.rounds), 0, MAX_ROUNDS)
    size = 1_000_000 if schedule.bounds.size is None else schedule.bounds.size
    return _Panel(schedule, replay(schedule), count(schedule, size, 4), size * 4)


def _finding(panels: Sequence[_Panel]) -> str:
    if len(panels) == 1:
        return f"{plural(panels[0].traffic.rounds, 'round')}, and {panels[0].load} through the busiest rank"
    quick = min(panels, key=lambda p: p.traffic.rounds)
    light = min(panels, key=lambda p: p.traffic.busiest_bytes / p.nbytes)
    other = " and" if quick is light else f", {light.name.lower()}"
    return f"{sentence(quick.name)} needs the fewest rounds{other} moves the least through one rank"


def _draw(panel: _Panel, top: float, step: float, room: float) -> Iterator[str]:
    """Yield one schedule: its name, its numbers, and its ranks as lines with a bead for the state of each round."""
    rounds, world = len(panel.schedule.rounds), panel.schedule.world
    xs = [LEFT + index * step for index in range(rounds + 1)]
    ys = [top + PANEL_HEAD + (rank + 0.5) * panel.pitch for rank in range(world)]
    yield text(MARGIN, top + 16, schedule_name(panel.schedule), 14, bold=True, room=room)
    yield aside(MARGIN, top + 35, panel.numbers, room=room)
    for rank, y in enumerate(ys):
        yield aside(LEFT - 18, y + 4, f"rank {rank}", anchor="end")
        yield line(LEFT, y, xs[-1], y, palette.IDLE, 2)
    below, every = top + PANEL_HEAD + world * panel.pitch + 14, 1 if step >= 20 else 5
    for index in range(1, rounds + 1):
        if index % every == 0 or index == 1:
            yield aside(xs[index] - step / 2, below, str(index), anchor="middle")
    if rounds:
        yield aside(LEFT - 18, below, "round", anchor="end")
    for state in panel.states:
        for source, dest, reduce in dict.fromkeys((m.source, m.dest, m.reduce) for m in state.messages):
            start, end = (xs[state.index - 1], ys[source]), (xs[state.index], ys[dest])
            ends = towards(start, end, RADIUS), towards(end, start, RADIUS + 2)
            yield arrow(ends, 1.8, stored=not reduce)
    for state in panel.states:
        for y, kinds in zip(ys, state.kinds, strict=True):
            yield _bead(_worst(kinds), xs[state.index], y)


def _worst(kinds: Sequence[Kind]) -> Kind:
    """Return the kind shown for a rank with several chunks: fault if one is; complete or nothing only if all are."""
    present = set(kinds) - {"empty"}
    if "fault" in present:
        return "fault"
    return present.pop() if len(present) == 1 else "partial"


def _bead(kind: Kind, x: float, y: float) -> str:
    if kind in ("complete", "fault"):
        return badge(kind, x, y, RADIUS)
    bead = circle(x, y, RADIUS - 0.5, fill=FILL[kind], stroke=EDGE[kind], stroke_width=1.5)
    return bead + (circle(x, y, 2.2, fill=EDGE[kind]) if kind == "partial" else "")


def _marks(panels: Sequence[_Panel]) -> Iterator[Mark]:
    present = {_worst(kinds) for panel in panels for state in panel.states for kinds in state.kinds}
    for kind in MEANING:
        if kind in present:
            yield Mark(MEANING[kind], _bead(kind, RADIUS, RADIUS))
    for reduce, name in ((True, "added"), (False, "stored")):
        yield Mark(name, arrow(((0, 7), (30, 7)), 1.8, stored=not reduce), 30)


MAX_MESH_RANKS, MAX_DIMENSIONS = 32, 5
MESH_LEFT, MESH_RIGHT, MESH_TOP = 84, 150, 84
NODE_GAP, CELL_WIDTH, CELL_HEIGHT, ROW_HEIGHT = 14, 40, 38, 58
GROUP_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"


def draw_groups(mesh: Mesh, per_node: int, rank: int, title: str) -> Picture:
    """Draw every rank of ``mesh`` once per dimension, with the letter of its group; the group of ``rank`` is marked.

    Nodes of ``per_node`` ranks are framed. Up to 32 ranks and 5 dimensions; ``title`` states the finding. Raises
    `InvalidArgument`.
    """
    if not isinstance(mesh, Mesh) or mesh.world > MAX_MESH_RANKS or len(mesh.sizes) > MAX_DIMENSIONS:
        raise InvalidArgument("mesh", mesh, f"a Mesh of at most {MAX_MESH_RANKS} ranks and {MAX_DIMENSIONS} dimensions")
    check_int("per_node", per_node, 1)
    check_int("rank", rank, 0, mesh.world - 1)
    width = min(CELL_WIDTH, (1000 - MESH_LEFT - MESH_RIGHT) / mesh.world)
    places = [MESH_LEFT + r * width + r // per_node * NODE_GAP for r in range(mesh.world)]
    right = places[-1] + width
    card = Card(max(right + MESH_RIGHT, 560), title)
    for node, first in enumerate(range(0, mesh.world, per_node)):
        x, end = places[first], places[min(first + per_node, mesh.world) - 1] + width
        frame = x - 4, MESH_TOP - 10, end - x + 8, len(mesh.sizes) * ROW_HEIGHT - 2
        card.add(rect(*frame, rx=8, fill="none", stroke=palette.MUTED, stroke_dasharray="5 4"))
        label = f"node {node}" if end - x >= 44 else str(node)
        card.add(aside((x + end) / 2, MESH_TOP - 18, label, anchor="middle"))
    groups = []
    for row, name in enumerate(mesh.sizes):
        y = MESH_TOP + row * ROW_HEIGHT
        card.add(*_row(mesh, name, rank, y, places, width))
        nodes = mesh.nodes_per_group(per_node, name)
        reach = "inside a node" if nodes == 1 else f"over {nodes} nodes"
        card.add(aside(right + 16, y + CELL_HEIGHT / 2 + 4, reach, room=MESH_RIGHT - 24))
        groups.append(f"{name}: {', '.join(map(str, mesh.group(rank, name)))}, {reach}")
    alt = f"{mesh!r}, {per_node} in a node. The groups of rank {rank}: {'; '.join(groups)}."
    return card.picture(MESH_TOP + len(mesh.sizes) * ROW_HEIGHT + 4, alt)


def _row(mesh: Mesh, name: str, rank: int, y: float, places: list[float], width: float) -> list[str]:
    """Return the row of one dimension: its name and size, and all ranks."""
    groups = mesh.groups(name).tolist()
    letter = {r: GROUP_LETTERS[number] for number, group in enumerate(groups) for r in group}
    parts = [
        text(MARGIN, y + 17, name, 14, bold=True, room=MESH_LEFT - 30),
        aside(MARGIN, y + 33, plural(mesh.sizes[name], "rank"), room=MESH_LEFT - 30),
    ]
    for r, x in enumerate(places):
        marked, middle = letter[r] == letter[rank], x + width / 2
        ink = palette.INK if marked else palette.MUTED
        parts += [
            box(x + 2, y, width - 4, CELL_HEIGHT, palette.COMMUNICATION if marked else None, 0.3, r == rank),
            text(middle, y + 16, str(r), 12, anchor="middle", bold=r == rank),
            text(middle, y + 32, letter[r], anchor="middle", bold=marked, fill=ink),
        ]
    return parts
