"""Does a loss couple the examples of one rank's batch, so that the gradient of all ranks is no mean of theirs?

A loss that is a mean over examples has no second derivative with respect to activations of two different examples.
Batch statistics, distances and contrastive losses have one. It is computed once, in the update that the replay judges,
from the graph that the script has built: nothing of the script runs again. Where it cannot be computed, the names and
shapes of the graph's nodes show some couplings.
"""

import functools
from collections.abc import Callable
from graphlib import TopologicalSorter
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from dpbook.runs.watching.loss_graph import is_parameter, nodes

_RELATIVE = 1e-6
"""Second derivatives between examples that are smaller than this share of those within them count as rounding."""
_MOST_EDGES = 16
COUPLED = "the loss of an example depends on the other examples of its rank's batch"
HOOKS_ARE_SEEN = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether this torch tells if a saved tensor is unpacked by a hook; 2.9 does not."""
_HOOKED = "dpbook: it has a hook"
"""Key in the metadata of a graph's node."""
_DISTANCES = ("CdistBackward", "EuclideanDistBackward")
_SELECTIONS = ("TopkBackward", "SortBackward", "KthvalueBackward")


def mark_hooks(register_hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `torch.Tensor.register_hook` that marks the nodes whose outputs get a hook, for they do not show it."""

    @functools.wraps(register_hook)
    def register(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        if tensor.grad_fn is not None:
            tensor.grad_fn.metadata[_HOOKED] = True
        return register_hook(tensor, hook)

    return register


def describe_coupling(loss: torch.Tensor, batch: int) -> str:
    """Return how a loss couples the examples of one rank's batch of ``batch`` examples, as far as it shows; or ""."""
    graph = list(nodes(loss))
    names = [str(node.name()) for node in graph]
    if any(name.startswith("_AllGather") for name in names):  # torch's own, with a gradient
        return ""
    if any("Gather" in name and not name[-1].isdigit() for name in names):
        return "whether the script's own gather returns the gradients of all ranks cannot be seen"
    if any(name.startswith(_SELECTIONS) and _selects(node, batch) for node, name in zip(graph, names, strict=True)):
        return "the loss selects examples by comparing them with the others of its rank's batch"
    coupled = depends_on_other_examples(loss, batch)
    if coupled is None:
        coupled = any(name.startswith(_DISTANCES) for name in names) or (
            batch > 1 and any(_multiplies_examples(node, batch) for node in graph)
        )
    return COUPLED if coupled else ""


def _selects(node: Any, batch: int) -> bool:
    """Whether a node selects along the dimension of the examples, or of their tokens."""
    sizes = tuple(map(int, node._saved_self_sym_sizes))
    along_first = node._saved_dim % 2**64 in (0, 2**64 - len(sizes))
    return batch > 1 and along_first and sizes[0] % batch == 0


def _multiplies_examples(node: Any, batch: int) -> bool:
    """Whether a node multiplies two computed matrices with a row for each example, as a contrastive loss does."""
    if not str(node.name()).startswith(("MmBackward", "BmmBackward")):
        return False
    computed = [each for each, _ in node.next_functions if each is not None and not is_parameter(each)]
    *batches, rows, columns = map(int, node._input_metadata[0].shape)  # of the product
    alone = set(batches) <= {1}  # a batch of products, as of attention, has an example in each
    sides = (side > 1 and not (side % batch and batch % side) for side in (rows, columns))
    return alone and len(computed) == 2 and all(sides)


def depends_on_other_examples(loss: torch.Tensor, batch: int) -> bool | None:
    """Return whether it does, for a loss over ``batch`` examples; None where this cannot be found out.

    The graph may consist of torch's own nodes only, without hooks: the backward of a function that the script or a
    wrapper has written may communicate, as may a hook, and saved tensors that are unpacked by hooks may be computed
    again.
    """
    graph = list(nodes(loss))
    if batch < 2 or not HOOKS_ARE_SEEN or any(map(_has_side_effects, graph)):
        return None
    edges = _first_activations(graph, batch)
    if not edges or len(edges) > _MOST_EDGES:
        return None
    try:
        return _couples(loss, edges, batch // 2)
    except RuntimeError:  # a node without a second derivative, or too little memory
        return None


def _couples(loss: torch.Tensor, edges: list[GradientEdge], half: int) -> bool:
    """Whether the first derivatives at the first ``half`` of the examples depend on activations of the others."""
    first = torch.autograd.grad(loss, edges, create_graph=True, allow_unused=True)
    generator = torch.Generator().manual_seed(0)
    parts = []
    for gradient in first:
        if gradient is not None and gradient.requires_grad:
            weights = torch.rand(gradient[:half].shape, generator=generator, dtype=torch.float64) + 0.5
            parts.append((gradient[:half] * weights.to(gradient)).sum())
    if not parts:
        return False
    second = torch.autograd.grad(torch.stack(parts).sum(), edges, retain_graph=True, allow_unused=True)
    within, across = (
        max((float(each[rows].abs().max()) for each in second if each is not None and each[rows].numel()), default=0.0)
        for rows in (slice(half), slice(half, None))
    )
    return across > _RELATIVE * within


def _first_activations(graph: list[Any], batch: int) -> list[GradientEdge]:
    """Return the outputs with a row for each example that depend on no other such output: the first activations."""
    below = {node: [each for each, _ in node.next_functions if each is not None] for node in graph}
    above: dict[Any, bool] = {}
    for node in TopologicalSorter(below).static_order():
        above[node] = any(above[each] or _has_row_for_each(each, batch) for each in below[node])
    return [GradientEdge(node, 0) for node in graph if not above[node] and _has_row_for_each(node, batch)]


def _has_row_for_each(node: Any, batch: int) -> bool:
    metadata = node._input_metadata
    shape = tuple(metadata[0].shape) if len(metadata) == 1 else ()
    return len(shape) > 1 and shape[0] == batch and metadata[0].dtype.is_floating_point and not is_parameter(node)


def _has_side_effects(node: Any) -> bool:
    """Whether a node's backward may do more than compute: all but torch's own, whose names end in a digit."""
    name = str(node.name())
    if _HOOKED in node.metadata or not (name[-1].isdigit() or name == "torch::autograd::AccumulateGrad"):
        return True
    saved = (getattr(node, attribute) for attribute in dir(node) if attribute.startswith("_raw_saved_"))
    return any(getattr(each, "unpack_hook", None) is not None for each in saved)
