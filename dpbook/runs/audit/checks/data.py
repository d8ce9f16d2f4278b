"""Checks of the data: distinct examples per rank, a new order each epoch, equal numbers of batches."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dpbook.core import plural
from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import CheckResult, passed, untested
from dpbook.runs.audit.journals import RunJournals
from dpbook.runs.watching.journal import Event


@check("examples", "every rank reads its own examples", "chapter 03", after=("group",))
def examples(run: RunJournals) -> CheckResult | None:
    """Compare the examples that the ranks' models receive in the same forward of an update."""
    if not run.updates:
        return untested("no update was seen")
    if not run.replicated:
        return untested("some ranks hold parts of one replica, and may read the same")
    forwards = [of_ranks for update in _of_first(run) for of_ranks in update]
    batches = [[tuple(forward["rows"]) for forward in of_ranks] for of_ranks in forwards]
    batches = [of_ranks for of_ranks in batches if all(of_ranks)]
    if not batches:
        return untested("no forward of the model with a batch was seen")
    batches = _data(batches)
    if not batches:
        return untested("every batch is the same")
    shared = sum(_repeated(of_ranks) for of_ranks in batches)
    read = sum(len(rows) for of_ranks in batches for rows in of_ranks)
    if not shared:
        return passed(f"{plural(read, 'example')} in {len(batches)} batches of a rank")
    alike = sum(len(set(of_ranks)) < len(of_ranks) for of_ranks in batches)
    rank, place = _second(batches), forwards[0][0]["place"]
    if alike > len(batches) / 2:
        message = f"{shared} of {read} examples were read by an earlier rank too: the ranks read the same batches"
        return CheckResult("FAIL", message, rank, None, 1, place)
    if shared > read / 4:
        message = f"{shared} of {read} examples were read by several ranks: each draws by itself from all of them"
        return CheckResult("WARN", message, rank, None, None, place)
    return passed(f"{read - shared} of {read} examples are distinct")


def _data(batches: list[list[tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
    """Drop batches that recur, such as fixed prompts; keep them if all recur, as in a second epoch."""
    times = Counter(of_ranks[0] for of_ranks in batches)
    once = [of_ranks for of_ranks in batches if times[of_ranks[0]] == 1]
    return once or (batches if len(times) > 1 else [])


def _of_first(run: RunJournals) -> Iterator[list[tuple[Event, ...]]]:
    first = run.updates[0].optimizer
    return (list(update.in_step("forward")) for update in run.updates if update.optimizer == first)


def _repeated(of_ranks: list[tuple[str, ...]]) -> int:
    """Return the number of examples that an earlier rank has in the same forward."""
    counts = Counter(row for rows in of_ranks for row in set(rows))
    return sum(count - 1 for count in counts.values())


def _second(batches: list[list[tuple[str, ...]]]) -> int | None:
    """Return the first rank whose batch an earlier rank has too, or None."""
    pairs = ((rank, of_ranks.index(rows)) for of_ranks in batches for rank, rows in enumerate(of_ranks))
    return next((rank for rank, first in pairs if first < rank), None)


@check("parts", "the examples are divided among the ranks once", "chapter 03")
def parts(run: RunJournals) -> CheckResult | None:
    """Fail if a sampler divides a data set that is already one rank's part."""
    of_ranks = [_training(run, rank) for rank in range(run.world)]
    if not all(of_ranks):
        return None
    first = [events[0] for events in of_ranks]
    divided = all((event["replicas"] or 1) == run.world for event in first)
    if not divided or any(event["part"] is None for event in first):
        return None
    if len({event["part"] for event in first}) == run.world:
        message = f"each rank has a subset of its own, and its sampler takes one of {run.world} of that"
        unread = f"{100 * (1 - 1 / run.world):.0f} % of the examples are never read"
        return CheckResult("FAIL", f"{message}: {unread}", 0, None, None, first[0]["place"])
    return passed("one subset for all ranks, divided by the sampler")


def _training(run: RunJournals, rank: int) -> list[Event]:
    """Return the epochs of the loaders on whose batches the model is trained."""
    used = {event["loader"] for event in run.of("forward")[rank]}
    return [event for event in run.of("epoch")[rank] if event["loader"] in used]


@check("epochs", "every epoch has an order of its own", "chapter 03")
def epochs(run: RunJournals) -> CheckResult | None:
    """Compare the first batches of epochs: a `DistributedSampler` repeats its order without `set_epoch`."""
    events = [event for event in _training(run, 0) if event["sampler"] == "DistributedSampler" and event["shuffle"]]
    by_loader: dict[str, list[Event]] = {}
    for event in events:
        by_loader.setdefault(event["loader"], []).append(event)
    if not by_loader:
        return None
    repeated = [(one, two) for of_loader in by_loader.values() for one, two in pairwise(of_loader)]
    if not repeated:
        batches = events[0]["batches"]
        return untested(f"one epoch was seen, which has {batches} batches; --updates asks for more")
    same = next(
        ((one, two) for one, two in repeated if one["order"] == two["order"] and (one["batches"] or 0) > 1), None
    )
    if same:
        message = (
            f"two epochs begin with the same batch, and sampler.epoch is {same[1]['epoch']} in both: call set_epoch"
        )
        return CheckResult("FAIL", message, 0, None, None, same[1]["place"])
    return passed(f"{len(events)} epochs")


@check("batches", "all ranks have the same number of batches", "chapter 09")
def batches(run: RunJournals) -> CheckResult | None:
    """Compare the lengths of the loaders: a rank with one batch more waits for ranks that have finished the epoch."""
    if any(run.of("join")):
        return passed("the script uses torch's Join")
    of_ranks = [_training(run, rank) for rank in range(run.world)]
    if not all(of_ranks):
        return None
    for events in zip(*of_ranks, strict=False):
        lengths = [event["batches"] for event in events]
        if None in lengths:
            return untested("the data set does not say how many batches it has")
        if len(set(lengths)) > 1:
            rank = lengths.index(max(lengths))
            message = (
                f"an epoch has {', '.join(map(str, lengths))} batches: unless the script stops at {min(lengths)}, "
            )
            message += "the others wait for ever; use torch's Join, or let the ranks agree on the number"
            return CheckResult("WARN", message, rank, None, None, events[rank]["place"])
    return passed(f"{of_ranks[0][0]['batches']} an epoch")


@check("evaluation", "an evaluation counts every example once", "chapter 03")
def evaluation(run: RunJournals) -> CheckResult | None:
    """Warn of examples that a `DistributedSampler` repeats to give all ranks the same number."""
    if not run.ranks:
        return None
    used = {event["loader"] for event in run.of("forward")[0]}
    others = [event for event in run.of("epoch")[0] if event["loader"] not in used and event["padded"] is not None]
    if not others or not used:
        return None
    padded = next((event for event in others if event["padded"] > 0), None)
    if padded is None:
        return passed(f"{plural(others[0]['examples'], 'example')}")
    message = f"{padded['padded']} of {padded['examples']} examples are counted twice, so that all ranks have as many: "
    return CheckResult("WARN", f"{message}leave the last ones out of the metric", 0, None, None, padded["place"])
