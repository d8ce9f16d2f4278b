"""Clock for the parts of a step on one rank, without synchronising a device during the step."""

from collections.abc import Iterable

import torch
from torch import nn

from dpbook.ranks import DeviceMoment, moment, now
from dpbook.runs.trainer.metrics import PARTS


class StepClock:
    """Moments of a step on ``device``, recorded in its queue: a device reaches them later than the host.

    While gradients are summed, a rank transfers and waits. The rank that computes longest waits for no other. The
    shortest sum of all ranks is therefore transfer, and the additional time of the others is waiting.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        """Register hooks on the trained parameters, which must be in their final wrapper."""
        self._device = device
        self._moments = [DeviceMoment()] * (len(PARTS) + 1)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda _: self._mark(1))

    def begin(self) -> None:
        """Mark the beginning of a step; reading its first batch counts as computing."""
        self._mark(0)

    def summed(self) -> None:
        """Mark the return of the backward that summed the gradients."""
        self._mark(2)

    def updated(self) -> None:
        """Mark the end of the optimizer's step."""
        self._mark(3)

    def seconds(self) -> list[float]:
        """Return the seconds of each of `PARTS` in the last step; waits until the device has finished it."""
        if self._device.type != "cpu":
            now(self._device)
        pairs = zip(self._moments, self._moments[1:], strict=False)
        return [before.until(after) for before, after in pairs]

    def _mark(self, place: int) -> None:
        self._moments[place] = moment(self._device)
