"""Does every rank read its own examples, in a new order each epoch, and as many as the others?"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dpbook.core import plural
from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import Found, passed, untested
from dpbook.runs.audit.journals import Seen
from dpbook.runs.watching.journal import Event


@check("examples", "every rank reads its own examples", "chapter 03", after=("group",))
def examples(seen: Seen) -> Found | None:
    """The examples that the ranks' models are given in the same forward of an update."""
    if not seen.updates:
        return untested("no update was seen")
    if not seen.replicated:
        return untested("some ranks hold parts of one replica, and may read the same")
    forwards = [of_ranks for update in _of_first(seen) for of_ranks in update]
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
        told = f"{shared} of {read} examples were read by an earlier rank too: the ranks read the same batches"
        return Found("FAIL", told, rank, None, 1, place)
    if shared > read / 4:
        told = f"{shared} of {read} examples were read by several ranks: each draws by itself from all of them"
        return Found("WARN", told, rank, None, None, place)
    return passed(f"{read - shared} of {read} examples are distinct")


def _data(batches: list[list[tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
    """Those that are data: not what comes again and again, such as prompts, unless all do, as in a second epoch."""
    times = Counter(of_ranks[0] for of_ranks in batches)
    once = [of_ranks for of_ranks in batches if times[of_ranks[0]] == 1]
    return once or (batches if len(times) > 1 else [])


def _of_first(seen: Seen) -> Iterator[list[tuple[Event, ...]]]:
    first = seen.updates[0].optimizer
    return (list(update.in_step("forward")) for update in seen.updates if update.optimizer == first)


def _repeated(of_ranks: list[tuple[str, ...]]) -> int:
    """How many examples a rank before has in the same forward."""
    counts = Counter(row for rows in of_ranks for row in set(rows))
    return sum(count - 1 for count in counts.values())


def _second(batches: list[list[tuple[str, ...]]]) -> int | None:
    """The first rank whose batch an earlier rank has."""
    pairs = ((rank, of_ranks.index(rows)) for of_ranks in batches for rank, rows in enumerate(of_ranks))
    return next((rank for rank, first in pairs if first < rank), None)


@check("parts", "the examples are divided among the ranks once", "chapter 03")
def parts(seen: Seen) -> Found | None:
    """A sampler that divides, over a data set that is a part already."""
    of_ranks = [_training(seen, rank) for rank in range(seen.world)]
    if not all(of_ranks):
        return None
    first = [events[0] for events in of_ranks]
    divided = all((event["replicas"] or 1) == seen.world for event in first)
    if not divided or any(event["part"] is None for event in first):
        return None
    if len({event["part"] for event in first}) == seen.world:
        told = f"each rank has a subset of its own, and its sampler takes one of {seen.world} of that"
        left = f"{100 * (1 - 1 / seen.world):.0f} % of the examples are never read"
        return Found("FAIL", f"{told}: {left}", 0, None, None, first[0]["place"])
    return passed("one subset for all ranks, divided by the sampler")


def _training(seen: Seen, rank: int) -> list[Event]:
    """The epochs of the loaders whose batches the model is trained on."""
    used = {event["loader"] for event in seen.of("forward")[rank]}
    return [event for event in seen.of("epoch")[rank] if event["loader"] in used]


@check("epochs", "every epoch has an order of its own", "chapter 03")
def epochs(seen: Seen) -> Found | None:
    """A shuffling `DistributedSampler` gives the same order again, unless `set_epoch` is called."""
    events = [event for event in _training(seen, 0) if event["sampler"] == "DistributedSampler" and event["shuffle"]]
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
        told = f"two epochs begin with the same batch, and sampler.epoch is {same[1]['epoch']} in both: call set_epoch"
        return Found("FAIL", told, 0, None, None, same[1]["place"])
    return passed(f"{len(events)} epochs")


@check("batches", "all ranks have the same number of batches", "chapter 09")
def batches(seen: Seen) -> Found | None:
    """What the loaders announce: a rank with a batch more waits for others that have ended their epoch."""
    if any(seen.of("join")):
        return passed("the script uses torch's Join")
    of_ranks = [_training(seen, rank) for rank in range(seen.world)]
    if not all(of_ranks):
        return None
    for events in zip(*of_ranks, strict=False):
        lengths = [event["batches"] for event in events]
        if None in lengths:
            return untested("the data set does not say how many batches it has")
        if len(set(lengths)) > 1:
            rank = lengths.index(max(lengths))
            told = f"an epoch has {', '.join(map(str, lengths))} batches: unless the script stops at {min(lengths)}, "
            told += "the others wait for ever; use torch's Join, or let the ranks agree on the number"
            return Found("WARN", told, rank, None, None, events[rank]["place"])
    return passed(f"{of_ranks[0][0]['batches']} an epoch")


@check("evaluation", "an evaluation counts every example once", "chapter 03")
def evaluation(seen: Seen) -> Found | None:
    """A `DistributedSampler` gives all ranks as many examples, and repeats some for that."""
    if not seen.ranks:
        return None
    used = {event["loader"] for event in seen.of("forward")[0]}
    others = [event for event in seen.of("epoch")[0] if event["loader"] not in used and event["padded"] is not None]
    if not others or not used:
        return None
    padded = next((event for event in others if event["padded"] > 0), None)
    if padded is None:
        return passed(f"{plural(others[0]['examples'], 'example')}")
    told = f"{padded['padded']} of {padded['examples']} examples are counted twice, so that all ranks have as many: "
    return Found("WARN", f"{told}leave the last ones out of the metric", 0, None, None, padded["place"])
