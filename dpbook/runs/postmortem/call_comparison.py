"""What the ranks' records of their collectives say when they are compared, in words."""

from collections.abc import Iterable, Mapping

from dpbook.core import plural
from dpbook.runs.postmortem.collective_calls import Call, Key, Records


def name(ranks: Iterable[int]) -> str:
    """ "rank 1", or "ranks 0, 2"."""
    numbers = [str(rank) for rank in ranks]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers)}"


def numbered(records: Records, key: Key, call: Call) -> str:
    """ "call 14 (all_reduce of 10 × float32)"."""
    return f"call {call.number}{records.group(key)} ({call.what})"


def placed(records: Records, key: Key, call: Call) -> str:
    """As `numbered`, with the line."""
    return f"{numbered(records, key, call)[:-1]}{call.place})"


def difference(records: Records) -> str:
    """The first call in which the ranks differ, in its tensors or because one has left it out; or ""."""
    found = records.difference()
    if not found:
        return ""
    number, calls = f"call {found.number}{records.group(found.key)}", found.calls
    if found.skipped:
        call = next(iter(found.skipped.values()))
        instead = calls[next(iter(found.skipped))]
        skipped = f"{name(found.skipped)} skipped {number} ({call.what}{call.place})"
        return f"the ranks called different collectives: {skipped} and called {instead.what}{instead.place}"
    first = next(iter(calls.values()))
    if all((call.op, call.where) == (first.op, first.where) for call in calls.values()):
        tensors = _by_rank({rank: call.payload for rank, call in calls.items()})
        return f"the ranks' calls do not match: {number} ({first.op}{first.place}) has {tensors}"
    kinds = _by_rank({rank: f"{call.what}{call.place}," for rank, call in calls.items()})
    return f"the ranks called different collectives: {number} was {kinds}"


def behind(records: Records) -> str:
    """Who has not come to a call in which others wait, and waits for nobody itself; or ""."""
    late = [(rank, *found) for rank in sorted(records.ranks) if (found := _missed(records, rank))]
    free = [one for one in late if not any(_waits_in(records, one[0], key, call) for _, key, call in late)]
    said: dict[str, list[int]] = {}
    for rank, key, call in free or late:
        there = [other for other in records.members(key) if _waits_in(records, other, key, call)]
        last = records.ranks[rank].last(key)
        came = f"the last there was call {last.number} ({last.what}{last.place})" if last else "there was none before"
        waiting = f"; {name(there)} waited in it" if there else ""
        said.setdefault(f"{placed(records, key, call)}: {came}{waiting}", []).append(rank)
    told = "\n".join(f"{name(ranks)} never came to {where}" for where, ranks in said.items())
    return told if free or not late else f"ranks wait for each other:\n{told}"


def unended(records: Records) -> str:
    """A call that did not come to its end, although all came to it of whom there is a record; or ""."""
    for key in records.keys:
        last = {rank: call for rank, record in records.members(key).items() if (call := record.last(key))}
        left = [rank for rank, call in last.items() if not call.ended]
        if left:
            where = placed(records, key, last[left[0]])
            silent = sorted(set(key[1]) - records.ranks.keys())
            if silent:
                return f"{name(left)} waited in {where}, and of {name(silent)} nothing is known: dead, or not collected"
            return f"all came to {where}, and it did not end on {name(left)}: look at the network, and at these GPUs"
    return ""


def positions(records: Records) -> str:
    """A line a rank: how many calls it has made, and the last of each group that has not ended."""
    return "\n".join(f"  {name([rank])}: {_position(records, rank)}" for rank in sorted(records.ranks))


def _position(records: Records, rank: int) -> str:
    record = records.ranks[rank]
    made = ", ".join(plural(record.number(key), "call") + records.group(key) for key in record.groups)
    last = {key: calls[-1] for key, calls in record.groups.items() if calls}
    waits = " and ".join(placed(records, key, call) for key, call in last.items() if not call.ended)
    return f"{made or 'no call'}; {f'in {waits}' if waits else 'in none'}"


def _missed(records: Records, rank: int) -> tuple[Key, Call] | None:
    """The call to which a rank has not come and others have."""
    return records.awaited(rank, set(records.ranks) - {rank})


def _waits_in(records: Records, rank: int, key: Key, missed: Call) -> bool:
    """Whether a rank's last call of a group is the one that another has missed, or a later one, and has not ended."""
    last = records.ranks[rank].last(key)
    return last is not None and last.number >= missed.number and not last.ended


def _by_rank(told: Mapping[int, str]) -> str:
    """ "5 × float32 on ranks 0, 2, but 3 × float32 on rank 1"."""
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(told.items()):
        ranks.setdefault(text, []).append(rank)
    return ", but ".join(f"{text} on {name(of)}" for text, of in ranks.items())
