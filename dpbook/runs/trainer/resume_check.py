"""Check whether a run can resume with other options, and with which consequences. Loads no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from dpbook.core import DpbookError
from dpbook.runs.trainer.options import Options
from dpbook.runs.trainer.run_folder import earlier_run

CONTINUE_FLAG = "--continue-changed"
HARMLESS = {"name", "out", "steps", "save_every", "predict", "profile"}
"""Options that do not change the training."""
SHAPES = ("model", "width", "depth", "context", "lora")
"""Options that determine the shapes of the weights."""
BATCH_OPTIONS = ("batch", "accumulation", "ranks")
"""Settings that determine the size of a global batch."""


class Change(NamedTuple):
    """Changed option, or changed number of ranks."""

    name: str
    before: Any
    now: Any


def changes(before: Mapping[str, Any], ranks_before: int, options: Options, ranks: int) -> list[Change]:
    """Return the differences between a run with the options ``before`` and one with ``options`` that affect training.

    An option that did not exist before had its default value.
    """
    differences = []
    for spec in fields(Options):
        old, new = before.get(spec.name, spec.default), getattr(options, spec.name)
        if spec.name not in HARMLESS and old != new:
            differences.append(Change(spec.name, old, new))
    return differences + ([Change("ranks", ranks_before, ranks)] if ranks != ranks_before else [])


def table(differences: list[Change]) -> str:
    """Return a table of the changes, one in each line."""
    rows = [("option", "before", "now"), *((one.name, str(one.before), str(one.now)) for one in differences)]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows
    )


def obstacles(differences: list[Change]) -> dict[str, str]:
    """Return the changes with which a run cannot resume under any circumstances, each with the reason."""
    reasons = {one.name: "the weights in the checkpoint have other shapes" for one in differences if one.name in SHAPES}
    strategy = _of(differences, "strategy")
    if strategy and "zero1" in (strategy.before, strategy.now):
        other = strategy.now if strategy.before == "zero1" else strategy.before
        reasons["strategy"] = f"zero1 keeps a shard of the optimizer's state on each rank, {other} all of it on all"
    return reasons


def consequences(differences: list[Change], before: Mapping[str, Any], options: Options) -> Iterator[str]:
    """Yield the consequences of resuming with these changes: for data, optimizer state and reproducibility."""
    ranks = _of(differences, "ranks")
    old, new = (ranks.before, ranks.now) if ranks else (1, 1)
    old_batch = int(before.get("batch", 1)) * int(before.get("accumulation", 1)) * old
    new_batch = options.batch * options.accumulation * new
    if old_batch != new_batch:
        share = "the global batch" if ranks else "each rank's share of the global batch"
        yield (
            f"{share} changes from {old_batch} to {new_batch} examples. The position in the data is counted in steps: "
            f"it is that of a run with {new_batch} from the start, so some examples are skipped or repeated"
        )
    elif any(one.name in BATCH_OPTIONS for one in differences):
        yield "the size of the global batch and the position in the data stay the same"
    if _of(differences, "seed"):
        yield "the weights are resumed from the checkpoint; the order of the data changes from there on"
    if ranks and options.strategy == "zero1":
        yield "the moments of the sharded optimizer begin at zero: their shards fit only the same number of ranks"
    elif _of(differences, "strategy"):
        yield "every rank keeps the optimizer's whole state, which is resumed; sums in another order have other bits"


def refuse_to_mix(options: Options, ranks: int, *, changed: bool) -> None:
    """Raise `DpbookError` if the folder of ``options`` has a run that these options would not continue.

    With ``changed`` the user accepts the changes that are possible.
    """
    before = earlier_run(options.folder)
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
                f"--name another begins a new run, {CONTINUE_FLAG} resumes this one nevertheless"
            )
        return
    differences = changes(before.options, before.world, options, ranks)
    fatal = obstacles(differences)
    if differences and (fatal or not changed):
        head = f"refused: {options.folder} holds a run with other options, of step {before.step:,}"
        way = "--name another begins a new run"
        if fatal:
            notes = [f"it cannot resume with another {name}: {reason}" for name, reason in fatal.items()]
        else:
            notes = list(consequences(differences, before.options, options))
            way = f"{way}; {CONTINUE_FLAG} resumes this one"
        raise DpbookError("\n".join([head, table(differences), *(f"  {note}" for note in notes), way]))


def is_finished(options: Options) -> bool:
    """Whether the run in the folder of ``options`` has finished all its steps."""
    before = earlier_run(options.folder)
    return before is not None and before.step == options.steps


def _of(differences: list[Change], name: str) -> Change | None:
    return next((one for one in differences if one.name == name), None)
