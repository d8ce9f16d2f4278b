"""Checks of the data: distinct examples per rank, a new order each epoch, equal batches, a mean over all examples."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from dpbook.core import plural
from dpbook.runs.audit.findings import CheckResult, check, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update
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
    lines: dict[str, list[tuple[Event, ...]]] = {}
    for of_ranks in (of_ranks for update in _of_first(run) for of_ranks in update):
        if all(forward["rows"] for forward in of_ranks):
            lines.setdefault(str(of_ranks[0]["place"]), []).append(of_ranks)
    if not lines:
        return untested("no forward of the model with a batch was seen")
    of_lines = [(_data([[tuple(each["rows"]) for each in of] for of in line]), line) for line in lines.values()]
    of_lines = [(batches, line) for batches, line in of_lines if batches]
    if not of_lines:
        return untested("every batch is the same")
    own = [batches for batches, _ in of_lines if not _alike(batches)]
    for batches, line in of_lines:
        if _alike(batches):
            rank, place = _second(batches), line[0][0]["place"]
            shared, read = _shared(batches)
            if own:
                message = f"{shared} of {read} inputs here are those of an earlier rank, while the ranks' data differ: "
                return CheckResult("WARN", f"{message}noise from equal seeds, or meant so", rank, None, 1, place)
            message = f"{shared} of {read} examples were read by an earlier rank too: the ranks read the same batches"
            return CheckResult("FAIL", message, rank, None, 1, place)
    batches = [of_ranks for of_line, _ in of_lines for of_ranks in of_line]
    shared, read = _shared(batches)
    seen = [row for of_line in lines.values() for forwards in of_line for row in forwards[0]["rows"]]
    few = FEW_DISTINCT * len(set(seen)) < len(seen) or read < 2 * LEAST_EXAMPLES * run.world
    if shared > read / 4 and few:
        return untested("the data have few distinct examples, so that equal ones on several ranks say nothing")
    if shared > read / 4:
        message = f"{shared} of {read} examples were read by several ranks: each draws by itself from all of them"
        return CheckResult("WARN", message, _second(batches), None, None, of_lines[0][1][0][0]["place"])
    distinct = f"{read - shared} of {read} examples are distinct"
    return passed(distinct if shared else f"{plural(read, 'example')} in {len(batches)} batches of a rank")


def _alike(batches: list[list[tuple[str, ...]]]) -> bool:
    """Whether two ranks have the same examples in every batch; single ones may be the same by chance."""
    pairs = combinations(range(len(batches[0])), 2)
    enough = sum(len(of_ranks[0]) for of_ranks in batches) >= LEAST_EXAMPLES
    return enough and any(all(of_ranks[one] == of_ranks[two] for of_ranks in batches) for one, two in pairs)


def _shared(batches: list[list[tuple[str, ...]]]) -> tuple[int, int]:
    """Return the number of examples that an earlier rank has too, and the number of all."""
    return sum(map(_repeated, batches)), sum(len(rows) for of_ranks in batches for rows in of_ranks)


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
        message = f"each rank has a subset of its own, and its sampler takes one of {run.world} of that: "
        shared = _overlap(first[0]["part_sample"], first[1]["part_sample"])
        if shared:
            message += f"ranks 0 and 1 share about {shared:.0%} of theirs, so some examples are read twice and others "
            message += "never; give random_split the same seed on all ranks"
        else:
            message += f"{100 * (1 - 1 / run.world):.0f} % of the examples are never read"
        place = first[0]["part_place"] or first[0]["place"]
        return CheckResult("FAIL", message, 0, None, None, place)
    return passed("one subset for all ranks, divided by the sampler")


def _overlap(one: list[int], other: list[int]) -> float:
    """Return the share of two sets' union that both have, estimated from the smallest hashes of each (MinHash)."""
    smallest = sorted({*one, *other})[: max(len(one), len(other))]
    return len({*one} & {*other} & {*smallest}) / len(smallest) if smallest else 0.0


def _training(run: RunJournals, rank: int) -> list[Event]:
    """Return the epochs of the loaders on whose batches the model is trained."""
    used = {event["object"] for event in run.of("forward")[rank]}
    return [event for event in run.of("epoch")[rank] if event["object"] in used]


@check("epochs", "every epoch has an order of its own", "chapter 03")
def epochs(run: RunJournals) -> CheckResult | None:
    """Compare the first batches of epochs: a `DistributedSampler` repeats its order without `set_epoch`."""
    events = [event for event in _training(run, 0) if event["sampler"] == "DistributedSampler" and event["shuffle"]]
    by_loader: dict[str, list[Event]] = {}
    for event in events:
        by_loader.setdefault(f"{event['loader']} {event.get('sampler_object')}", []).append(event)
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
    used = {event["object"] for event in run.of("forward")[0]}
    others = [event for event in run.of("epoch")[0] if event["object"] not in used and event["padded"] is not None]
    if not others or not used:
        return None
    padded = next((event for event in others if event["padded"] > 0), None)
    if padded is None:
        return passed(f"{plural(others[0]['examples'], 'example')}")
    message = f"{padded['padded']} of {padded['examples']} examples are counted twice, so that all ranks have as many: "
    return CheckResult("WARN", f"{message}leave the last ones out of the metric", 0, None, None, padded["place"])


SMALL_EXCESS = 1.1
"""Factor up to which a term may weigh too much for a mere warning: counts vary a little in masked language models."""
_TOLERANCE = 1e-4


@check("mean", "the mean over ranks is the batch's mean", "chapter 03")
def mean(run: RunJournals) -> CheckResult | None:
    """Check that all ranks and micro-batches of an update divide every term of a loss by the same number."""
    backwards = [event for events in run.of("backward") for event in events]
    if not backwards:
        return untested("no backward was seen")
    unread = next((event for event in backwards if event["losses"] is None), None)
    worst: CheckResult | None = None
    for update in run.updates:
        found = uneven(run, update)
        if found and found.status == "FAIL":
            return found
        worst = worst or found
    if worst or (worst := _wrong_length(run)):
        return worst
    if unread:
        return CheckResult(
            "----", "not tested: what the loss is divided by cannot be read from its graph", place=unread["place"]
        )
    return passed(_summary(run.updates[-1])) if run.updates else untested("no update was seen")


def uneven(run: RunJournals, update: Update) -> CheckResult | None:
    """Return a failure or warning if the means of one update are over different numbers of terms, or None."""
    results = [each for of_line in by_line(update) if (each := _uneven(of_line, update, _short(run, update)))]
    return next((each for each in results if each.status == "FAIL"), results[0] if results else None)


def by_line(update: Update) -> Iterator[list[tuple[int, Event]]]:
    """Yield, for each line of the script, the backwards of one update that it calls, as pairs of rank and event.

    Of several backwards after one forward each is a loss of its own, and yielded as of another line.

    The divisors are without a gradient scaler's factor. If another optimizer (a critic's) steps between the backwards
    of a line, only those after its last step belong to the update. Backwards before gradients were cleared do not.
    """
    lines: dict[str, list[tuple[int, Event]]] = {}
    for rank, events in enumerate(update.before):
        factor, others = 1.0, 0
        known: dict[str, tuple[int, list[tuple[int, Event]]]] = {}
        for event in events:
            if event["kind"] == "scaled":
                factor = event["factor"]
            elif event["kind"] == "step":
                others += 1
            elif event["kind"] == "backward":
                if event.get("cleared"):
                    known.clear()
                line = f"{event['place']} {event.get('nth', 0)}"
                after, backwards = known.get(line, (others, []))
                backwards = backwards if after == others else []
                known[line] = others, [*backwards, (rank, _unscaled(event, factor))]
                factor = 1.0
        for line, (_, backwards) in known.items():
            lines.setdefault(line, []).extend(backwards)
    yield from lines.values()


def _unscaled(event: Event, factor: float) -> Event:
    losses = event["losses"]
    return event | {"losses": losses and [part | {"divisor": part["divisor"] * factor} for part in losses]}


def reduced(events: Sequence[Event]) -> Iterator[list[dict[str, Any]]]:
    """Yield the first mean or sum of every loss, then the second of every loss, and so on.

    Nothing is yielded if the losses do not consist of the same number of parts.
    """
    losses = [event["losses"] for event in events]
    if all(losses) and len({len(loss) for loss in losses}) == 1:
        yield from (list(part) for part in zip(*losses, strict=True))


def _uneven(of_line: list[tuple[int, Event]], update: Update, short: bool) -> CheckResult | None:
    events = [event for _, event in of_line]
    for parts in reduced(events):
        divisors = [part["divisor"] for part in parts]
        fair = sum(abs(each) for each in divisors) / len(divisors)
        lowest = min(range(len(parts)), key=lambda place: abs(divisors[place]))
        highest = max(abs(each) for each in divisors)
        if (
            highest <= abs(divisors[lowest]) * (1 + _TOLERANCE) or not divisors[lowest]
        ):  # a mean over no term is NaN, which another check reports
            continue
        most = fair / abs(divisors[lowest])
        counts = " ".join(f"{part['terms']:g}" for part in parts)
        message = (
            f"the means of ranks and micro-batches are over {counts} terms: one weighs up to {most:.2f} times too much"
        )
        alike = _same_on_all_ranks(of_line, divisors)
        small = most < SMALL_EXCESS or short or alike
        message += " (alike on all ranks: unless these are losses of their own)" if alike else ""
        message += " (the end of an epoch)" if short and most >= SMALL_EXCESS and not alike else ""
        rank, event = of_line[lowest]
        return CheckResult("WARN" if small else "FAIL", message, rank, None, update.number, event["place"])
    return None


def _same_on_all_ranks(of_line: list[tuple[int, Event]], divisors: Sequence[float]) -> bool:
    """Whether the micro-batches of every rank have the same divisors, and differ among themselves."""
    by_rank: dict[int, list[float]] = {}
    for (rank, _), divisor in zip(of_line, divisors, strict=True):
        by_rank.setdefault(rank, []).append(divisor)
    first, *others = by_rank.values()
    return len(first) > 1 and bool(others) and all(each == first for each in others)


def _short(run: RunJournals, update: Update) -> bool:
    """Whether a rank has a shorter batch in this update than usual, as at the end of an epoch.

    The usual length is the largest one. If fewer than half of a rank's batches have it, no length is usual.
    """
    for events, known in zip(update.of("forward"), run.of("forward"), strict=True):
        lengths = [len(event["rows"]) for event in known]
        most = max(lengths, default=0)
        if 2 * lengths.count(most) >= len(lengths) and any(len(event["rows"]) < most for event in events):
            return True
    return False


def _wrong_length(run: RunJournals) -> CheckResult | None:
    """Warn of micro-batches whose means are added instead of averaged, or of more of them than the divisor assumes."""
    usual: dict[str, float] = {}
    for update in run.updates:
        for of_line in by_line(update):
            events = [event for _, event in of_line]
            for number, parts in enumerate(reduced(events)):
                micro, length = len(parts) // run.world, _length(parts, run.world)
                before = usual.setdefault(f"{events[0]['place']} {number}", length)
                message = ""
                if parts[0]["mean"] and micro > 1 and abs(length - micro) < _TOLERANCE * micro:
                    message = (
                        f"the means of {micro} micro-batches are added, not averaged: {micro} times the mean's gradient"
                    )
                elif parts[0]["mean"] and abs(before - 1) < _TOLERANCE and length > 1 + _TOLERANCE:
                    message = f"it has {micro} micro-batches, each divided as if there were {micro / length:g}: "
                    message += f"{length:.4g} times the mean's gradient (what was left over before?)"
                if message:
                    return CheckResult("WARN", message, None, None, update.number, events[0]["place"])
    return None


def _length(parts: Sequence[dict[str, Any]], world: int) -> float:
    """Return the length of the ranks' mean gradient relative to the gradient of the mean over all terms."""
    terms, divisor = sum(part["terms"] for part in parts), parts[0]["divisor"]
    return terms / (world * divisor) if divisor else 0.0


@dataclass(frozen=True)
class WrittenLength:
    """Length of the ranks' mean gradient, as one line's losses are written, relative to that of a mean over the batch.

    Attributes:
        parts: by the terms of each mean or sum in the loss; 1 is a mean over all terms of all ranks and micro-batches.
        by_examples: the same for all parts together, by the examples that the model was given.
        means: whether every part is a mean, whose divisor torch has counted.
        divisors: divisor of each loss.
    """

    parts: tuple[float, ...]
    by_examples: float
    means: bool
    divisors: tuple[float, ...]

    @property
    def total(self) -> float:
        """Sum over the parts, as of two halves of a loss."""
        return sum(self.parts)

    @property
    def even(self) -> bool:
        """Whether all parts weigh the same; others have weights of their own, whose sum says nothing."""
        return max(self.parts) - min(self.parts) < _TOLERANCE * max(self.parts)


def written_lengths(update: Update, world: int) -> list[WrittenLength]:
    """Return the length for each line of the script that calls backward; nothing for a line that cannot be read."""
    examples = sum(len(event["rows"]) for events in update.of("forward") for event in events)
    lengths = []
    for of_line in by_line(update):
        parts = list(reduced([event for _, event in of_line]))
        if parts:
            length = tuple(_length(part, world) for part in parts)
            terms = sum(part["terms"] for part in parts[0])
            means = all(each["mean"] for part in parts for each in part)
            divisors = tuple(each["divisor"] for each in parts[0])
            lengths.append(WrittenLength(length, sum(length) * examples / (terms or 1), means, divisors))
    return lengths


def _summary(update: Update) -> str:
    for of_line in by_line(update):
        of_parts = list(reduced([event for _, event in of_line]))
        if of_parts:
            terms, number = sum(part["terms"] for part in of_parts[0]), len(of_parts[0])
            message = f"{terms:g} terms in {number} losses of an update"
            if len(of_parts) > 1:
                return f"{message}, in {len(of_parts)} parts with the same divisors on all ranks"
            return f"{message}, each divided by {of_parts[0][0]['divisor']:g}"
    return "no loss that can be read"
