"""Does a mesh number ranks and form groups as defined?"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.planning import ACCELERATORS, LINKS, Cluster, Mesh
from tests.cases import each

NETWORK = LINKS["InfiniBand NDR 400 Gb/s"]
SMALL = Mesh({"dp": 2, "pp": 2, "tp": 4})
NAMES = ("dp", "pp", "ep", "tp")
meshes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(lambda s: Mesh(dict(zip(NAMES, s, strict=False))))


def cluster(world, per_node=8):
    return Cluster(ACCELERATORS["H100 SXM"], world, NETWORK, per_node)


@given(meshes)
def test_ranks_are_numbered_like_the_digits_of_a_clock(mesh):
    """The last dimension varies fastest."""
    in_order = product(*(range(size) for size in mesh.sizes.values()))
    for rank, places in enumerate(in_order):
        there = dict(zip(mesh.sizes, places, strict=True))
        assert mesh.coordinates(rank) == there
        assert mesh.rank(**there) == rank
    assert rank + 1 == mesh.world


@given(meshes, st.data())
def test_a_group_is_who_differs_in_its_dimensions_only(mesh, data):
    names = data.draw(st.lists(st.sampled_from(list(mesh.sizes)), min_size=1, unique=True))
    rank = data.draw(st.integers(0, mesh.world - 1))
    mine = mesh.coordinates(rank)
    same = [
        other
        for other in range(mesh.world)
        if all(place == mine[name] for name, place in mesh.coordinates(other).items() if name not in names)
    ]
    assert mesh.group(rank, *names) == tuple(same)


@given(meshes, st.data())
def test_the_groups_of_a_dimension_share_out_all_ranks(mesh, data):
    name = data.draw(st.sampled_from(list(mesh.sizes)))
    groups = mesh.groups(name)
    assert groups.shape == (mesh.world // mesh.sizes[name], mesh.sizes[name])
    assert sorted(groups.ravel()) == list(range(mesh.world))


def test_the_innermost_groups_are_neighbours_and_the_outermost_are_far_apart():
    assert SMALL.group(5, "tp") == (4, 5, 6, 7)
    assert SMALL.group(5, "pp") == (1, 5)
    assert SMALL.group(5, "dp") == (5, 13)
    assert SMALL.group(5, "dp", "pp") == (1, 5, 9, 13)


def test_a_coordinate_that_is_left_out_is_0():
    assert SMALL.rank(pp=1) == 4


@pytest.mark.parametrize(
    ("names", "nodes"), [(["tp"], 1), (["pp"], 1), (["dp"], 2), (["tp", "pp"], 1), (["dp", "tp"], 2)]
)
def test_nodes_of_a_group(names, nodes):
    assert SMALL.nodes_per_group(8, *names) == nodes


def test_a_group_across_a_nodes_border_counts_both():
    assert Mesh({"dp": 2, "tp": 6}).nodes_per_group(8, "tp") == 2  # ranks 6 to 11


def test_a_group_inside_a_node_talks_over_its_fabric():
    of = cluster(16)
    assert [SMALL.link(of, name) for name in SMALL.sizes] == [NETWORK, of.accelerator.fabric, of.accelerator.fabric]


def test_it_says_what_it_is():
    assert repr(Mesh({"dp": 64, "pp": 16, "tp": 8})) == "dp 64 × pp 16 × tp 8: 8,192 ranks"


@each(
    ("call", "message"),
    [
        (lambda: Mesh({}), "sizes must be"),
        (lambda: Mesh([2, 4]), "sizes must be"),
        (lambda: Mesh({2: 4}), "sizes must be"),
        (lambda: Mesh({"dp": 0}), r"sizes\['dp'\] must be"),
        (lambda: SMALL.coordinates(16), "rank must be an integer from 0 to 15"),
        (lambda: SMALL.rank(tp=4), "tp must be an integer from 0 to 3"),
        (lambda: SMALL.rank(ep=0), "dimension must be one of dp, pp, tp"),
        (lambda: SMALL.groups(), "names must be"),
        (lambda: SMALL.groups("dp", "dp"), "names must be"),
        (lambda: SMALL.groups("ep"), "dimension must be one of dp, pp, tp"),
        (lambda: SMALL.group(-1, "dp"), "rank must be"),
        (lambda: SMALL.nodes_per_group(0, "dp"), "per_node must be"),
        (lambda: SMALL.link(cluster(8), "dp"), "cluster must be a Cluster of 16 ranks"),
        (lambda: SMALL.link(NETWORK, "dp"), "cluster must be a Cluster of 16 ranks"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        call()
