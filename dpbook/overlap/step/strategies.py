"""The ways to sync gradients that the book compares: which plan, and when its buckets go out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbook.core import check_type
from dpbook.overlap.buckets.layout import Plan
from dpbook.overlap.buckets.plans import flat_plan, per_tensor_plan, plan
from dpbook.overlap.step.layers import Layer, tensors_of


@dataclass(frozen=True)
class Strategy:
    """A plan and when it fires.

    Attributes:
        name: for titles.
        plan: None for no communication at all.
        overlap: whether a bucket goes out as soon as its last gradient is ready (and the buckets before it are out),
            or all of them after backward.
    """

    name: str
    plan: Plan | None
    overlap: bool

    def __repr__(self) -> str:
        calls = "no communication" if self.plan is None else f"{self.plan.calls} calls"
        when = "" if self.plan is None else ", during backward" if self.overlap else ", after backward"
        return f"{self.name}: {calls}{when}"


def single() -> Strategy:
    """No communication: one worker, or the local part of a step."""
    return Strategy("single", None, False)


def naive(layers: Sequence[Layer]) -> Strategy:
    """After backward, a call for every tensor."""
    return Strategy("naive", per_tensor_plan(tensors_of(layers)), False)


def naive_flat(layers: Sequence[Layer]) -> Strategy:
    """After backward, one call for everything (one for each dtype on each device)."""
    return Strategy("flat", flat_plan(tensors_of(layers)), False)


def hook(layers: Sequence[Layer]) -> Strategy:
    """During backward, a call for every tensor as soon as its gradient is ready."""
    return Strategy("hook", per_tensor_plan(tensors_of(layers)), True)


def bucketed(buckets: Plan) -> Strategy:
    """During backward, a call for every bucket as soon as it is full: what DDP does."""
    check_type("buckets", buckets, Plan, "a Plan, as overlap.plan makes it")
    return Strategy("bucketed", buckets, True)


STRATEGIES: dict[str, Callable[[Sequence[Layer]], Strategy]] = {
    "single": lambda layers: single(),
    "naive": naive,
    "flat": naive_flat,
    "hook": hook,
    "bucketed": lambda layers: bucketed(plan(tensors_of(layers))),
}
"""All of them by name, each made from the layers; the buckets are those of the default caps."""
