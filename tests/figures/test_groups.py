"""Does the picture of a mesh show every rank's groups, and mark one rank's not by colour alone?"""

import pytest

from dpbook import figures
from dpbook.core.errors import InvalidArgument
from dpbook.planning import Mesh
from tests.cases import each
from tests.figures.reading import NS, outside, overlapping, parse, texts

SMALL = Mesh({"dp": 2, "tp": 2})
LARGE = Mesh({"dp": 2, "pp": 2, "cp": 2, "ep": 2, "tp": 2})


def test_every_rank_has_the_letter_of_its_group():
    drawn = texts(parse(figures.draw_groups(SMALL, 2, 1, "Pairs")))
    row = drawn.index("2 ranks")
    assert drawn[row + 1 : row + 10] == ["0", "A", "1", "B", "2", "A", "3", "B", "over 2 nodes"]
    assert drawn[-9:] == ["0", "A", "1", "A", "2", "B", "3", "B", "inside a node"]


def test_the_group_of_the_rank_is_bold_and_told_in_words():
    picture = figures.draw_groups(SMALL, 2, 1, "Pairs")
    bold = [node.text for node in parse(picture).iter(f"{NS}text") if node.get("font-weight") == "700"]
    assert bold == ["Pairs", "dp", "1", "B", "B", "tp", "A", "1", "A"]
    assert picture.alt.endswith("The groups of rank 1: dp: 1, 3, over 2 nodes; tp: 0, 1, inside a node.")


@each("mesh", [SMALL, LARGE, Mesh({"tp": 1}), Mesh({"one": 1, "thirty-two": 32})])
@each("per_node", [1, 5, 8])
def test_nothing_is_cut_off_or_overlaps(mesh, per_node):
    picture = parse(figures.draw_groups(mesh, per_node, mesh.world - 1, "A title that says what the reader can see"))
    assert outside(picture) == []
    assert overlapping(picture) == []


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: figures.draw_groups(16, 8, 0, "Title"), "mesh"),
        (lambda: figures.draw_groups(Mesh({"dp": 33}), 8, 0, "Title"), "mesh"),
        (lambda: figures.draw_groups(SMALL, 0, 0, "Title"), "per_node"),
        (lambda: figures.draw_groups(SMALL, 2, 4, "Title"), "rank"),
        (lambda: figures.draw_groups(SMALL, 2, 0, " "), "title"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
