"""May a run go on with these options? What differs from before, and what becomes of it. Loads no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from dpbook.core import DpbookError
from dpbook.runs.trainer.options import Options
from dpbook.runs.trainer.run_folder import earlier

WORD = "--continue-changed"
FREE = {"name", "out", "steps", "save_every", "predict", "profile"}
"""Options that leave what is trained as it is."""
SHAPES = ("model", "width", "depth", "context", "lora")
"""Options that decide which weights there are."""
DEALT = ("batch", "accumulation", "ranks")
"""What the size of a global batch depends on."""


class Change(NamedTuple):
    """An option that is another than before, or the number of ranks."""

    name: str
    before: Any
    now: Any


def changes(before: Mapping[str, Any], ranks_before: int, options: Options, ranks: int) -> list[Change]:
    """What differs between a run with the options ``before`` and one with ``options``, of what its training is.

    An option that there was not yet had its default.
    """
    found = []
    for spec in fields(Options):
        old, new = before.get(spec.name, spec.default), getattr(options, spec.name)
        if spec.name not in FREE and old != new:
            found.append(Change(spec.name, old, new))
    return found + ([Change("ranks", ranks_before, ranks)] if ranks != ranks_before else [])


def table(found: list[Change]) -> str:
    """One line for each change, beneath a head."""
    rows = [("option", "before", "now"), *((one.name, str(one.before), str(one.now)) for one in found)]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows
    )


def obstacles(found: list[Change]) -> dict[str, str]:
    """The changes with which a run cannot go on, whoever wants it, each with the reason."""
    said = {one.name: "the weights in the checkpoint have other shapes" for one in found if one.name in SHAPES}
    strategy = _of(found, "strategy")
    if strategy and "zero1" in (strategy.before, strategy.now):
        other = strategy.now if strategy.before == "zero1" else strategy.before
        said["strategy"] = f"zero1 keeps a shard of the optimizer's state on each rank, {other} all of it on all"
    return said


def consequences(found: list[Change], before: Mapping[str, Any], options: Options) -> Iterator[str]:
    """What becomes of data, of the optimizer's state and of the bits where a run goes on so."""
    ranks = _of(found, "ranks")
    old, new = (ranks.before, ranks.now) if ranks else (1, 1)
    old_batch = int(before.get("batch", 1)) * int(before.get("accumulation", 1)) * old
    new_batch = options.batch * options.accumulation * new
    if old_batch != new_batch:
        share = "the global batch" if ranks else "each rank's share of the global batch"
        yield (
            f"{share} goes from {old_batch} to {new_batch} examples, and the place in the data is counted in steps: it "
            f"is where a run of {new_batch} from the start would be, so that some examples are left out or come again"
        )
    elif any(one.name in DEALT for one in found):
        yield "the global batch stays as large, and the place in the data is the same"
    if _of(found, "seed"):
        yield "the weights go on from the checkpoint; the order of the data is another from there on"
    if ranks and options.strategy == "zero1":
        yield "the moments of the sharded optimizer begin at zero: their shards fit the same number of ranks alone"
    elif _of(found, "strategy"):
        yield "every rank keeps the optimizer's whole state, which goes on; sums of another order have other bits"


def refuse_to_mix(options: Options, ranks: int, *, changed: bool) -> None:
    """Raise `DpbookError` where the folder of ``options`` holds a run that these options would not continue.

    With ``changed`` the user has said that what may change shall.
    """
    before = earlier(options.folder)
    if before is None:
        return
    if options.steps < before.step:
        raise DpbookError(
            f"refused: {options.folder} has done {before.step:,} steps already, more than --steps {options.steps:,}; "
            "--name another begins a new run"
        )
    if before.options is None:
        if not changed:
            raise DpbookError(
                f"refused: {options.folder} holds a run whose options cannot be read (run.json); "
                f"--name another begins a new run, {WORD} goes on with this one all the same"
            )
        return
    found = changes(before.options, before.world, options, ranks)
    never = obstacles(found)
    if found and (never or not changed):
        head = f"refused: {options.folder} holds a run with other options, of step {before.step:,}"
        way = "--name another begins a new run"
        if never:
            notes = [f"it cannot go on with another {name}: {why}" for name, why in never.items()]
        else:
            notes, way = list(consequences(found, before.options, options)), f"{way}; {WORD} goes on with this one"
        raise DpbookError("\n".join([head, table(found), *(f"  {note}" for note in notes), way]))


def is_finished(options: Options) -> bool:
    """Whether the run in the folder of ``options`` has done all its steps."""
    before = earlier(options.folder)
    return before is not None and before.step == options.steps


def _of(found: list[Change], name: str) -> Change | None:
    return next((one for one in found if one.name == name), None)
