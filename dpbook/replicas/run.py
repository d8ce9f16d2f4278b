"""What a training run leaves behind."""

from dataclasses import dataclass, field

import numpy as np

from dpbook.core import plural
from dpbook.replicas.array import Array


@dataclass(frozen=True)
class Run:
    """What a training run leaves behind; NaN stands for what was not measured.

    Attributes:
        params: (world, size), the parameters of each replica after the last step.
        losses: (steps,), the loss of each step's global batch before its update.
        final_loss: loss over all of the data after the last update, at rank 0's parameters.
        drifts: (steps,), largest absolute difference between any two replicas' parameters after each update.
        gaps: (steps,), largest absolute difference between any rank's averaged gradient and the gradient of the
            whole global batch computed in one go at rank 0's parameters; NaN in a step that averaged no gradients.
        local_losses: (steps, world), the mean loss of each rank's own shard (0 for an empty one). Column 0 is what a
            program that logs on rank 0 without an all-reduce calls "the loss".
        sent: (steps, world), bytes that each rank sent in each step; NaN where they cannot be counted.
        rounds: (steps,), how many rounds of messages followed one another in each step.
    """

    params: Array = field(repr=False)
    losses: Array
    final_loss: float
    drifts: Array
    gaps: Array
    local_losses: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    sent: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    rounds: Array = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def world(self) -> int:
        return len(self.params)

    @property
    def drift(self) -> float:
        """Largest drift after any step: 0 says that the replicas never parted."""
        return float(self.drifts.max())

    @property
    def gap(self) -> float:
        """Largest gap in any step."""
        return float(self.gaps.max())

    def __repr__(self) -> str:
        loss = f"loss {self.losses[0]:.6f} → {self.final_loss:.6f}"
        length = f"{plural(self.world, 'replica')}, {plural(len(self.losses), 'step')}"
        return f"Run({length}, {loss}, drift {self.drift:.3g}, gap {self.gap:.1g})"
