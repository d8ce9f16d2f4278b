"""Checks of the data: distinct examples per rank, a new order each epoch, equal batches."""

from collections import Counter
from itertools import chain, combinations, pairwise
from typing import Any, TypeAlias

from dpbook.core import plural
from dpbook.runs.audit.findings import CheckResult, check, passed, untested
from dpbook.runs.audit.journals import RunJournals
from dpbook.runs.watching.journal import Event

FEW_DISTINCT = 3
"""Times that a rank's examples recur on average, from which on those that ranks share are no evidence."""
LEAST_EXAMPLES = 3
"""Examples of a rank below which equal ones are no evidence."""


@check("examples", "every rank reads its own examples", "chapter 03", after=("group",))
def examples(run: RunJournals) -> CheckResult | None:
    """Compare the examples that the ranks' models receive in the same forward of an update."""
    if not run.updates:
        return untested("no update was seen")
    if not run.replicated:
        return untested("some ranks hold parts of one replica, and may read the same")
    lines: dict[str, list[Batch]] = {}  # of the model's forwards in the updates of the first optimizer
    places: dict[str, Any] = {}
    for update in run.updates:
        for forwards in run.forwards_in_step(update) if update.optimizer == run.updates[0].optimizer else ():
            if all(forward["rows"] for forward in forwards):
                line = str(forwards[0]["place"])
                places.setdefault(line, forwards[0]["place"])
                lines.setdefault(line, []).append([tuple(forward["rows"]) for forward in forwards])
    if not lines:
        return _same_gradients(run)
    of_lines = {line: data for line, batches in lines.items() if (data := _without_recurring(batches))}
    if not of_lines:
        return untested("every batch is the same")
    alike = [line for line, batches in of_lines.items() if _alike(batches)]
    if alike:
        line = alike[0]
        rank, (shared, read) = _second(of_lines[line]), _shared(of_lines[line])
        if len(alike) < len(of_lines):
            message = f"{shared} of {read} inputs here are those of an earlier rank, while the ranks' data differ: "
            return CheckResult("WARN", f"{message}noise from equal seeds, or intended", rank, None, 1, places[line])
        message = f"{shared} of {read} examples were read by an earlier rank too: the ranks read the same batches"
        message += "; divide the data, as a DistributedSampler does that the loader is given"
        return CheckResult("FAIL", message, rank, None, 1, places[line])
    batches = list(chain.from_iterable(of_lines.values()))
    shared, read = _shared(batches)
    seen = [row for of_line in lines.values() for of_ranks in of_line for row in of_ranks[0]]
    few = FEW_DISTINCT * len(set(seen)) < len(seen) or read < 2 * LEAST_EXAMPLES * run.world
    if shared > read / 4 and few:
        return untested("the data set has few distinct examples, so equal ones on several ranks prove nothing")
    if shared > read / 4:
        message = f"{shared} of {read} examples were read by several ranks: each draws by itself from all of them"
        return CheckResult("WARN", message, _second(batches), None, None, places[next(iter(of_lines))])
    if length := _undivided(run, max(len(of_ranks[0]) for of_ranks in batches)):
        common = set.intersection(*({row for of in batches for row in of[rank]} for rank in range(run.world)))
        message = f"each rank's loader goes through all {length} examples of its data set, and no sampler divides them"
        if common:
            return CheckResult("WARN", f"{message}: {plural(len(common), 'example')} seen were read by every rank")
        reasons = "each rank shuffles all of it with its own seed (then ranks read examples twice), or something else "
        return untested(f"{message}. The inputs differ: {reasons}divides the data")
    distinct = f"{read - shared} of {read} examples are distinct"
    return passed(distinct if shared else f"{plural(read, 'example')} in {len(batches)} batches of a rank")


def _same_gradients(run: RunJournals) -> CheckResult:
    """Compare the ranks' own gradients, before they are averaged, where the script does not call the model itself."""
    unseen, updates = "no forward of the model with a batch was seen", run.updates[:LEAST_EXAMPLES]
    own = [[step.get("own") for step in update.steps] for update in updates if update.optimizer == updates[0].optimizer]
    if len(own) < LEAST_EXAMPLES or not all(chain.from_iterable(own)):
        return untested(unseen)
    rank = _second([[(str(each),) for each in of_ranks] for of_ranks in own])
    if rank is None or any(len(set(of_ranks)) == run.world for of_ranks in own):
        return untested(unseen)
    message = f"{unseen}, but ranks had the same gradients before they were averaged: do they read the same examples?"
    return CheckResult("WARN", message, rank, None, updates[0].number, updates[0].steps[rank]["place"])


def _undivided(run: RunJournals, batch: int) -> int:
    """Return the length of a data set through which every rank goes by itself; 0 where something divides it."""
    first = [events[0] for rank in range(run.world) if (events := _training(run, rank))]
    if len(first) < run.world or len({event["examples"] for event in first}) > 1:
        return 0
    length, batches = first[0]["examples"] or 0, first[0]["batches"] or 0
    by_part = any((event["replicas"] or 1) > 1 or event["part"] is not None for event in first)
    return 0 if by_part or 2 * batches * batch * run.world < 3 * length else int(length)


Batch: TypeAlias = list[tuple[str, ...]]
"""Hashes of the examples of a forward, for each rank."""


def _alike(batches: list[Batch]) -> bool:
    """Whether two ranks have the same examples in every batch; single ones may be the same by chance."""
    pairs = combinations(range(len(batches[0])), 2)
    enough = sum(len(of_ranks[0]) for of_ranks in batches) >= LEAST_EXAMPLES
    return enough and any(all(of_ranks[one] == of_ranks[two] for of_ranks in batches) for one, two in pairs)


def _shared(batches: list[Batch]) -> tuple[int, int]:
    """Return the number of examples that an earlier rank has in the same forward too, and the number of all."""
    counts = [Counter(row for rows in of_ranks for row in set(rows)) for of_ranks in batches]
    repeated = sum(of_batch.total() - len(of_batch) for of_batch in counts)
    return repeated, sum(len(rows) for of_ranks in batches for rows in of_ranks)


def _without_recurring(batches: list[Batch]) -> list[Batch]:
    """Drop batches that recur, such as fixed prompts; keep them if all recur, as in a second epoch."""
    times = Counter(of_ranks[0] for of_ranks in batches)
    once = [of_ranks for of_ranks in batches if times[of_ranks[0]] == 1]
    return once or (batches if len(times) > 1 else [])


def _second(batches: list[Batch]) -> int | None:
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
    if len({event["part"] for event in first}) < run.world:
        return passed("one subset for all ranks, divided by the sampler")
    message = f"each rank has a subset of its own, and its sampler takes one of {run.world} of that: "
    one, other = (event["part_sample"] for event in first[:2])
    smallest = sorted({*one, *other})[: max(len(one), len(other))]  # of all hashes: both sets have as many (MinHash)
    if common := {*one} & {*other} & {*smallest}:
        message += f"ranks 0 and 1 share about {len(common) / len(smallest):.0%} of theirs, so some examples are read "
        message += "twice and others never; give random_split the same seed on all ranks"
    else:
        message += f"{100 * (1 - 1 / run.world):.0f} % of the examples are never read"
    return CheckResult("FAIL", message, 0, None, None, first[0]["part_place"] or first[0]["place"])


def _training(run: RunJournals, rank: int) -> list[Event]:
    """Return the epochs of the loaders on whose batches the model is trained, of the loops that train it.

    A script may look at one batch elsewhere, before it sets the sampler's epoch, or evaluate between the call of the
    model and the reading of its batch: then a forward seems to belong to the last batch that was read elsewhere.
    """
    used: dict[tuple[Any, Any], set[int | None]] = {}
    for event in run.of("forward")[rank]:
        numbers = used.setdefault((event["object"], event["loader"]), set())
        numbers.add(event["batch"][2] if event["batch"] else None)
    loops = [loop for loop, numbers in used.items() if len(numbers) > 1 or numbers & {1, None}]
    return [event for event in run.of("epoch")[rank] if (event["object"], event["loader"]) in loops]


@check("epochs", "every epoch has an order of its own", "chapter 03")
def epochs(run: RunJournals) -> CheckResult | None:
    """Compare the first batches of each loader's epochs: a `DistributedSampler` repeats them without `set_epoch`."""
    events = _training(run, 0)
    by_loader: dict[str, list[Event]] = {}
    for event in events:
        by_loader.setdefault(f"{event['loader']} {event.get('sampler_object')}", []).append(event)
    if not events:
        return untested("no DataLoader of torch gives the model its batches") if run.updates else None
    pairs = [pair for of_loader in by_loader.values() for pair in pairwise(of_loader)]
    if not pairs:
        batches = events[0]["batches"]
        if batches is None:
            return untested("one epoch was seen; raise --updates to see more")
        return untested(f"one epoch was seen, which has {batches} batches; --updates {batches + 1} would show the next")
    repeated = next((two for one, two in pairs if one["order"] == two["order"] and one["batches"] != 1), None)
    return _repeated_order(repeated) if repeated else passed(f"{len(events)} epochs")


def _repeated_order(event: Event) -> CheckResult:
    """Return the result for two epochs that begin with the same batch; ``event`` is that of the second one."""
    sampler, message = event["sampler"], "two epochs begin with the same batch"
    if sampler == "_InfiniteConstantSampler":
        return untested("the data set is iterable, and orders its examples itself")
    if sampler == "SequentialSampler" or event["shuffle"] is False:
        return untested(f"{message}: {sampler} does not shuffle")
    if event["epoch"] is not None:
        message += f", and sampler.epoch is {event['epoch']} in both: call set_epoch"
        return CheckResult("FAIL" if event["shuffle"] else "WARN", message, 0, None, None, event["place"])
    if sampler == "RandomSampler" or event["shuffle"]:
        message += f", although {sampler} shuffles: is its generator seeded anew for every epoch?"
        return CheckResult("WARN", message, 0, None, None, event["place"])
    return untested(f"{message}, and whether {sampler} is meant to shuffle is not known")


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
            message = f"an epoch has {', '.join(map(str, lengths))} batches: unless the script stops at "
            message += (
                f"{min(lengths)}, the others wait for ever; use torch's Join, or let the ranks agree on the number"
            )
            return CheckResult("WARN", message, rank, None, None, events[rank]["place"])
    return passed(f"{of_ranks[0][0]['batches']} an epoch")


@check("evaluation", "evaluation counts every example once", "chapter 03")
def evaluation(run: RunJournals) -> CheckResult | None:
    """Warn of examples that a sampler repeats, or drops, to give all ranks the same number."""
    used = [{event["object"] for event in forwards} for forwards in run.of("forward")]
    of_ranks = [
        [event for event in begun if event["object"] not in used[rank]] for rank, begun in enumerate(run.of("epoch"))
    ]
    if not any(of_ranks) or not all(used):
        return None
    counted = []
    for events in zip(*of_ranks, strict=False):
        total, shares = events[0]["examples"], [event["share"] for event in events]
        if total is None or None in shares:
            continue
        counted.append(total)
        excess = sum(shares) - total
        if excess and all(event["examples"] != -excess for event in of_ranks[0]):  # a loader of its own has the rest
            fault, drop = ("read twice", "") if excess > 0 else ("left out", "drop_last=False, and ")
            message = f"{abs(excess)} of {total} examples are {fault}, so that all ranks have as many: "
            message += f"{drop}leave the repeated ones at the end out of the metric, if the script does not"
            return CheckResult("WARN", message, 0, None, None, events[0]["place"])
    if counted:
        return passed(plural(counted[0], "example"))
    if not all(of_ranks):
        return untested("not every rank started an evaluation")
    return untested(
        "no sampler says how it divides the examples: each rank reads all, or a part that something else makes"
    )
