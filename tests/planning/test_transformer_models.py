"""Are the models as large as their papers say, and the adapters as small?"""

import pytest

from dpbook.core.errors import InvalidArgument
from dpbook.planning import MODELS, count_parameters, low_rank_adapters


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [("Llama-2 7B", 6_738_415_616, 291), ("Llama-2 70B", 68_976_648_192, 723), ("Qwen3 4B", 4_022_468_096, 398)],
)
def test_published_sizes(name, parameters, tensors):
    model = MODELS[name]
    assert model.parameters == parameters
    assert len(model.shapes()) == tensors
    assert repr(model) == f"{name}: {parameters:,} parameters in {tensors} tensors"


def test_rank_16_adapters_on_every_linear_layer_of_qwen3_4b():
    """Publications often print 40 MB a step."""
    adapters = count_parameters(low_rank_adapters(MODELS["Qwen3 4B"], 16))
    assert adapters == 33_030_144
    assert (round(2 * adapters / 1e6), round(4 * adapters / 1e6)) == (66, 132)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_adapters_have_the_shapes_of_their_layer(rank):
    model = MODELS["Llama-2 7B"]
    shapes = low_rank_adapters(model, rank, ["attention.query", "mlp.down"])
    assert len(shapes) == 2 * 2 * model.layers
    assert shapes["layers.3.mlp.down.down"] == (rank, 11008)
    assert shapes["layers.3.mlp.down.up"] == (4096, rank)


@pytest.mark.parametrize("targets", [[], ["attention.q"], ["mlp.up", "output"]])
def test_unknown_layers_are_named(targets):
    with pytest.raises(InvalidArgument, match=r"targets must be one or more of attention\.query"):
        low_rank_adapters(MODELS["Qwen3 4B"], 16, targets)
