"""What is differentiated, whether it is averaged, and, for a replay, each rank's own gradients before that."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from dpbook.runs.watching.divisors import Reduced, reductions
from dpbook.runs.watching.forwards import Forwards
from dpbook.runs.watching.local_gradients import LocalGradients
from dpbook.runs.watching.recorder import Recorder, place


class Backwards:
    """Watches every backward of the script; those inside another (re-entrant checkpoints) are part of it."""

    def __init__(self, recorder: Recorder, forwards: Forwards, gradients: LocalGradients) -> None:
        self._recorder, self._forwards, self._gradients = recorder, forwards, gradients
        self._inside = False
        recorder.replace(torch.autograd, "backward", self._watched)

    def _watched(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def watch_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._recorder.active:
                return backward(tensors, *args, **kwargs)
            with self._recorder.watching():
                self._note(tensors, args[:1] or [kwargs.get("grad_tensors")])
            self._inside = True
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._inside = False

        return watch_backward

    def _note(self, tensors: Any, given: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        plain = len(roots) == 1 and roots[0].numel() == 1 and not any(each is not None for each in given)
        found = _readable(roots[0]) if plain else None
        value = float(roots[0].detach()) if plain else None
        losses = None if found is None else [asdict(each) for each in found]
        where = place()
        self._gradients.begin(found, f"{where[0]}:{where[1]}" if where else "")
        self._recorder.note("backward", losses=losses, value=value, sync=self._forwards.sync(), place=where)


def _readable(loss: torch.Tensor) -> list[Reduced] | None:
    try:
        return reductions(loss)
    except (RuntimeError, AttributeError):  # a graph whose tensors are packed away, or that names them otherwise
        return None
