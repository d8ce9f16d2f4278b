"""How are parameters divided among units, rows and ranks? No process group is needed."""

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpbook.core import InvalidArgument
from dpbook.ddp.sharded.row import Row
from dpbook.ddp.sharded.units import Member, Slice, boxes, divide

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(shape=SHAPES, cuts=st.lists(st.integers(0, 64), min_size=2, max_size=4))
def test_boxes_are_the_elements_between_two_places_in_their_order(shape, cuts):
    elements = np.arange(prod(shape)).reshape(shape)
    begin, end = sorted(min(cut, elements.size) for cut in cuts[:2])
    found = [
        elements[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))].reshape(-1)
        for offsets, sizes in boxes(shape, begin, end)
    ]
    assert np.concatenate([*found, np.array([], int)]).tolist() == list(range(begin, end))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@settings(max_examples=50)
@given(shapes=st.lists(SHAPES, min_size=1, max_size=5), world=st.integers(1, 5))
def test_the_pieces_of_all_ranks_are_the_row(shapes, world):
    """Whatever the sizes, below the world too: each element is on one rank, and the shards are of one length."""
    begins = np.cumsum([0, *map(prod, shapes)])
    whole = [torch.arange(a, a + prod(s), dtype=torch.float64).view(s) for a, s in zip(begins, shapes, strict=False)]
    together = [[] for _ in shapes]
    for rank in range(world):
        members = [Member((str(k),), nn.Parameter(t.clone()), ()) for k, t in enumerate(whole)]
        row = Row(members, torch.float64, rank, world)
        row.share_out([])
        assert row.shard.numel() == -(-begins[-1] // world)
        assert not row.alive
        for k, member in enumerate(members):
            together[k] += member.parameter.tolist()
            part = row.slice_of(k, member.parameter.detach())
            assert (
                row.piece_of(k, "x", whole[k]).tolist()
                == row.piece_of(k, "x", part).tolist()
                == member.parameter.tolist()
            )
    assert together == [t.reshape(-1).tolist() for t in whole]


def test_a_slice_is_saved_and_loaded_but_not_computed_with():
    piece = Slice(torch.arange(5.0), (3, 4), 2)
    assert repr(piece) == "Slice(5 of 12 elements of shape (3, 4))"
    assert {at: part.tolist() for at, part in piece.parts.items()} == {(0, 2): [[0, 1]], (1, 0): [[2, 3, 4]]}
    with pytest.raises(InvalidArgument, match="tensor must be whole"):
        piece.sum()


def names(shares):
    return {share.name: [member.name for member in share.members] for share in shares}


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)) for _ in range(2))


def test_a_parameter_belongs_to_the_innermost_unit_around_it():
    model = Blocks()
    own = [f"{k}.{name}" for k in (0, 2) for name in ("weight", "bias")]
    assert names(divide(model, None)) == {
        "": ["embed.weight", "head.weight", *[f"blocks.{b}.{name}" for b in (0, 1) for name in own]]
    }
    assert names(divide(model, [*model.blocks, model.blocks[1][2]])) == {
        "": ["embed.weight", "head.weight"],
        "blocks.0": [f"blocks.0.{name}" for name in own],
        "blocks.1": ["blocks.1.0.weight", "blocks.1.0.bias"],
        "blocks.1.2": ["blocks.1.2.weight", "blocks.1.2.bias"],
    }
    assert list(names(divide(model, lambda m: isinstance(m, nn.Linear)))) == [
        "", "head", "blocks.0.0", "blocks.0.2", "blocks.1.0", "blocks.1.2",
    ]  # fmt: skip


def test_what_is_tied_belongs_to_the_unit_around_all_its_places():
    model = Blocks()
    model.blocks[0][0].weight = model.blocks[0][2].weight
    model.blocks[1][2].bias = model.blocks[0][2].bias
    shares = {share.name: share for share in divide(model, lambda m: isinstance(m, nn.Linear | nn.Sequential))}
    assert names(shares.values())[""] == ["embed.weight", "blocks.0.2.bias"]
    assert names(shares.values())["blocks.0"] == ["blocks.0.0.weight"]
    (tied,) = shares["blocks.0"].members
    assert tied.names == ("blocks.0.0.weight", "blocks.0.2.weight")
    assert tied.places == ((model.blocks[0][0], "weight"), (model.blocks[0][2], "weight"))


def test_a_module_at_two_places_is_one_unit():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.append(model[0])
    shares = divide(model, lambda m: isinstance(m, nn.Linear))
    assert names(shares) == {"": [], "0": ["0.weight", "0.bias"], "1": ["1.weight", "1.bias"]}
    assert shares[1].members[0].names == ("0.weight", "2.weight")
