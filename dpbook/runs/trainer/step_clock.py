"""Where the seconds of a rank's step go, without holding up a device in the middle of it."""

from collections.abc import Iterable

import torch
from torch import nn

from dpbook.ranks import DeviceMoment, moment, now
from dpbook.runs.trainer.metrics import PARTS


class Pace:
    """The moments of a step of ``parameters`` on ``device``: a kernel's are taken on the device, which runs later.

    While its own gradients are summed a rank transfers and waits: the one that computes longest waits for nobody, so
    that the shortest summing of all ranks is transfer, and what the others need above it is waiting.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        """Parameters are those that are trained, in the wrapper that they keep."""
        self._device = device
        self._moments = [DeviceMoment()] * (len(PARTS) + 1)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda _: self._mark(1))

    def begin(self) -> None:
        """The step begins: what it reads first counts as computing."""
        self._mark(0)

    def summed(self) -> None:
        """The backward has returned that summed the gradients."""
        self._mark(2)

    def updated(self) -> None:
        """The optimizer has stepped."""
        self._mark(3)

    def seconds(self) -> list[float]:
        """Of each of `PARTS` of the step that was taken last; waits until the device has done it."""
        if self._device.type != "cpu":
            now(self._device)
        pairs = zip(self._moments, self._moments[1:], strict=False)
        return [before.until(after) for before, after in pairs]

    def _mark(self, place: int) -> None:
        self._moments[place] = moment(self._device)
