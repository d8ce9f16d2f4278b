"""Does the picture of the collectives show what they do?"""

import numpy as np

from dpbook.book.ch05 import CHUNKS, FAMILY, RANKS, draw_family
from dpbook.collectives import all_gather, broadcast, reduce, reduce_scatter, relabel, ring, simulate
from tests.cases import each
from tests.figures.reading import misplaced, parse, texts

IN_PLACE = [2, 0, 1]  # the library's ring leaves chunk c with rank c - 1; in the picture rank c has it
SCHEDULES = {
    "broadcast": broadcast(3),
    "reduce": reduce(3),
    "reduce-scatter": relabel(reduce_scatter(3), chunks=IN_PLACE),
    "all-gather": relabel(all_gather(3), chunks=IN_PLACE),
    "all-reduce": ring(3),
}


def value(cell):
    """ "a1" counts 10; "Σa" 111, as the sum of all ranks' a does; chunk b the double of a, chunk c the triple."""
    if not cell:
        return 0
    chunk, rank = ("abc".index(cell[1]), None) if cell[0] == "Σ" else ("abc".index(cell[0]), int(cell[1]))
    return (chunk + 1) * (111 if rank is None else 10**rank)


def values(grid):
    return np.array([[value(cell) for cell in row] for row in grid])


@each("name", SCHEDULES)
def test_what_is_shown_afterwards_is_what_the_schedule_leaves(name):
    before, after = map(values, FAMILY[name])
    held = np.asarray(simulate(SCHEDULES[name], before).buffers)
    assert np.array_equal(held[after > 0], after[after > 0])


def test_an_all_to_all_gives_each_rank_one_chunk_of_every_rank():
    before, after = FAMILY["all-to-all"]
    assert [set(row) for row in after] == [{f"{chunk}{rank}" for rank in RANKS} for chunk in CHUNKS]
    assert sorted(cell for row in after for cell in row) == sorted(cell for row in before for cell in row)


def test_gather_undoes_scatter_but_for_whose_chunks_they_are():
    (before, after), (pieces, joined) = FAMILY["scatter"], FAMILY["gather"]
    assert [[cell[:1] for cell in row] for row in after] == [[cell[:1] for cell in row] for row in pieces]
    assert [cell[:1] for cell in joined[0]] == [cell[:1] for cell in before[0]]
    assert not any(joined[1] + joined[2] + before[1] + before[2])


def test_every_cell_is_drawn_and_nothing_leaves_the_picture():
    root = parse(draw_family())
    shown = texts(root)
    for name, grids in FAMILY.items():
        assert name in shown
        assert all(cell in shown for grid in grids for row in grid for cell in row if cell)
    assert misplaced(root) == []
