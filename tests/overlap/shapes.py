"""Tensors and layers for tests of plans, and hypothesis strategies that draw them."""

from hypothesis import strategies as st

from dpbook.overlap import Layer, Tensor

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


def resnet_like():
    """Return the gradients of a residual network: convolutions without biases between batch norms."""
    tensors_ = [Tensor("conv1.weight", (64, 3, 7, 7)), Tensor("bn1.weight", 64), Tensor("bn1.bias", 64)]
    width = 64
    for stage, out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            for k, fan_in in enumerate((width, out)):
                name = f"layer{stage}.{block}"
                tensors_.append(Tensor(f"{name}.conv{k}.weight", (out, fan_in, 3, 3)))
                tensors_ += [Tensor(f"{name}.bn{k}.{part}", out) for part in ("weight", "bias")]
            width = out
    return (*tensors_, Tensor("fc.weight", (1000, 512)), Tensor("fc.bias", 1000))


@st.composite
def tensors(draw, dtypes=tuple(DTYPES), largest=300):
    sizes = draw(st.lists(st.tuples(st.integers(0, largest), st.sampled_from(dtypes)), min_size=1, max_size=24))
    return tuple(Tensor(f"t{k}", size, dtype) for k, (size, dtype) in enumerate(sizes))


@st.composite
def layers(draw, most=12):
    """Draw up to ``most`` layers of whole milliseconds and up to 3 tensors each, with at least one tensor in all."""
    drawn = []
    for k in range(draw(st.integers(1, most))):
        sizes = draw(st.lists(st.integers(1, 50), min_size=k == 0, max_size=3))
        forward, backward = draw(st.integers(0, 20)), draw(st.integers(0, 40))
        its_tensors = tuple(Tensor(f"{k}.{i}", size) for i, size in enumerate(sizes))
        drawn.append(Layer(str(k), forward / 1000, backward / 1000, its_tensors))
    return tuple(drawn)
