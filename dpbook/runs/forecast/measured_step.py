"""A measured step: a script is started as `dpbook launch` does, watched for some updates, and read as layers.

Loads no torch.
"""

import json
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.collectives import Link
from dpbook.core import DpbookError, check_int, plural, temporary_folder
from dpbook.overlap import Layer, Tensor
from dpbook.runs.forecast.update_times import Timed, notes, timed
from dpbook.runs.launch import Launch, launch
from dpbook.runs.watching import read_journal
from dpbook.runs.watching.journal import FORECAST_VARIABLE

WARM = 3
"""Updates that do not count: in the first torch's DDP has other buckets, and memory is new."""


class NoForecast(DpbookError):
    """Too little was seen of a script, or something that is not modelled."""


@dataclass(frozen=True)
class Measured:
    """An update without communication, in seconds, from medians over the updates that count.

    Attributes:
        layers: one for each gradient, in the reverse of the order in which they became ready; of one micro-batch.
            Its forward is shared out as its backward is.
        other: data and all else outside of forward, backward and optimizer; on each rank the same.
        after: once the gradients' sums are there: clipping, the optimizer, what the wrapper copies.
        accumulation: micro-batches of an update.
        no_sync: whether only the last of them is synced.
        updates: how many counted.
        world: ranks that ran at the same time.
        cap: bytes of the wrapper's buckets where the script says it; None for torch's default.
        units, frozen: modules that sharding gathers as one, and the elements of what is not trained, by name.
        held: seconds of an update of those to compare with; None where there are none, or torch's DDP as it is did not
            carry their gradients.
        waited: seconds for which the updates that count waited for their gradients over what is really there.
        notes: what is odd about the script, or left out, in words.
    """

    layers: tuple[Layer, ...]
    other: float
    after: float
    accumulation: int = 1
    no_sync: bool = True
    updates: int = 1
    world: int = 1
    cap: int | None = None
    units: tuple[str, ...] = ()
    frozen: Mapping[str, int] | None = None
    held: float | None = None
    waited: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def forward(self) -> float:
        """Of all micro-batches."""
        return self.accumulation * sum(layer.forward for layer in self.layers)

    @property
    def backward(self) -> float:
        """Of all micro-batches."""
        return self.accumulation * sum(layer.backward for layer in self.layers)

    @property
    def alone(self) -> float:
        """The whole update, nothing communicated."""
        return self.other + self.forward + self.backward + self.after


def measured(journals: Sequence[Sequence[Mapping[str, Any]]]) -> Measured:
    """From the journals of all ranks.

    An update counts as on the rank that took longest: the others wait for it. Those to compare with count with the mean
    over the ranks: all end at about the same time.

    Raises `NoForecast`.
    """
    model = next((event for event in journals[0] if event["kind"] == "model"), None)
    if model is None:
        raise NoForecast("no update of an optimizer was seen: is it one of torch.optim, and does the script train?")
    _check_model(model)
    ranks = [[timed(e, len(journals)) for e in events if e["kind"] == "update"] for events in journals]
    together = [[one for one in of_ranks if one is not None] for of_ranks in zip(*ranks, strict=False)]
    counted = [of_ranks for of_ranks in together[WARM:] if of_ranks]
    free = [max(of_ranks, key=lambda one: one.alone) for of_ranks in counted if not of_ranks[0].held]
    held = [statistics.mean(one.period for one in of_ranks) for of_ranks in counted if of_ranks[0].held]
    if not free:
        raise NoForecast(
            f"the script made {len(together)} updates; the first {WARM} do not count, and one more is needed"
        )
    order = _order(free)
    by_ddp = model["wrapped"] and not model["own_hook"]
    return _medians(model, free, order, held if by_ddp else [])


def _check_model(model: Mapping[str, Any]) -> None:
    if model["sharded"]:
        raise NoForecast(
            "its parameters are sharded (fully_shard, DTensor), so that no gradient is seen when it is ready: forecast "
            "the plain model, with --stages 3"
        )
    if len({tensor["dtype"] for tensor in model["tensors"]} - {"float64", "float32", "float16", "bfloat16"}):
        raise NoForecast("it trains tensors that are no floating-point numbers of 2, 4 or 8 bytes")


def _order(updates: Sequence[Timed]) -> list[int]:
    """The gradients in the order in which they became ready in the last update."""
    made = {frozenset(number for number, _ in one.gaps) for one in updates}
    if len(made) > 1:
        raise NoForecast(
            "its updates differ in which gradients they make (optimizers that step in turn, each after a backward of "
            "its own, or parts that are used now and then); that is not modelled"
        )
    return [number for number, _ in updates[-1].gaps]


def _medians(
    model: Mapping[str, Any], updates: Sequence[Timed], order: Sequence[int], held: Sequence[float]
) -> Measured:
    def middle(value: Callable[[Timed], float]) -> float:
        return statistics.median(map(value, updates))

    micro_batches = round(middle(lambda one: len(one.forwards)))
    forward = middle(lambda one: sum(one.forwards) / len(one.forwards))
    backward = middle(lambda one: one.backwards[-1])
    other, after = middle(lambda one: one.other), middle(lambda one: one.after)
    # medians do not add up to the median of the sum, and it is whole updates that are forecast
    scale = middle(lambda one: one.alone) / (other + micro_batches * (forward + backward) + after)
    gaps = {number: statistics.median(dict(one.gaps)[number] for one in updates) for number in order}
    shares = {number: scale * gap / (sum(gaps.values()) or 1.0) for number, gap in gaps.items()}
    tensors = [Tensor(each["name"], tuple(each["shape"]), each["dtype"], each["device"]) for each in model["tensors"]]
    layers = tuple(
        Layer(tensors[number].name, forward * shares[number], backward * shares[number], (tensors[number],))
        for number in reversed(order)
    )
    return Measured(
        layers,
        other=scale * other,
        after=scale * after,
        accumulation=micro_batches,
        no_sync=not any(one.early for one in updates),
        updates=len(updates),
        world=model["world"],
        cap=model["cap"],
        units=tuple(model["units"]),
        frozen=model["frozen"],
        held=statistics.median(held) if held else None,
        waited=middle(lambda one: one.period - one.alone),
        notes=tuple(notes(model, updates, order)),
    )


PATIENCE = 30.0
"""Seconds after which somebody who waits is told for what."""

Say = Callable[[str], None]


class Stopped(NoForecast):
    """A signal ended the script; ``status`` is 128 and its number."""

    def __init__(self, status: int) -> None:
        super().__init__("ended before enough was seen")
        self.status = status


@dataclass(frozen=True)
class Script:
    """A script and its arguments (or "-m" and a module's), on ``nproc`` ranks of this machine, for so many ``updates``
    that count. With ``check`` as many more are made, in turn with these, to compare a forecast with. The gradients of
    those go over ``link``, an emulated one: bytes arrive when it would have carried them. Raises `InvalidArgument`.
    """

    program: tuple[str, ...]
    nproc: int = 1
    updates: int = 12
    check: bool = False
    link: Link | None = None
    start_timeout: float = 300.0

    def __post_init__(self) -> None:
        check_int("updates", self.updates, 1)
        self.launch()

    def launch(self, **told: str) -> Launch:
        """The launch of the script, watched if it is ``told`` how."""
        watcher = "dpbook.runs.watching.forecast_installation" if told else None
        return Launch(self.program, self.nproc, start_timeout=self.start_timeout, watcher=watcher, variables=told)


def measure(script: Script, say: Say = lambda text: None) -> Measured:
    """Run the script until enough is seen, and return what its updates took. ``say`` is told what is waited for.

    Raises `NoForecast` where it makes no updates, fails, or does what is not modelled; `Stopped` for Ctrl-C.
    """
    with temporary_folder("forecast") as folder:
        why: list[str] = []
        link = (script.link.latency, script.link.bandwidth) if script.link else None
        wanted = WARM + script.updates * (2 if script.check else 1)
        asked = json.dumps({"folder": str(folder), "updates": wanted, "check": script.check, "link": link})
        done = threading.Event()
        threading.Thread(target=_tell_progress, args=(folder, wanted, done, say), daemon=True).start()
        try:
            ended = launch(script.launch(**{FORECAST_VARIABLE: asked}), why.append)
        finally:
            done.set()
        if ended.status > 128:
            raise Stopped(ended.status)
        if ended.status:
            raise NoForecast("the script failed: " + "\n".join(why))
        return measured([read_journal(folder, rank) for rank in range(script.nproc)])


def _tell_progress(folder: Path, wanted: int, done: threading.Event, say: Say) -> None:
    while not done.wait(PATIENCE):
        seen = sum(event["kind"] == "update" for event in read_journal(folder, 0))
        say(f"{seen} of {plural(wanted, 'update')} seen; Ctrl-C ends it")
