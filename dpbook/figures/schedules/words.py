"""A schedule and its state in words: names, titles, alternative texts, descriptions."""

import re

from dpbook.collectives import Message, Schedule
from dpbook.core import bytes_in_words, plural
from dpbook.figures.schedules.frames import Kind, State

MEANING: dict[Kind, str] = {
    "own": "one contribution",
    "partial": "partial sum",
    "complete": "complete sum",
    "fault": "counted twice",
    "unknown": "nothing promised",
    "empty": "no elements",
}
MOST_MESSAGES = 8
"""How many messages are told one by one."""
PARAMETERS = re.compile(r"\((\w+=[^()]*)\)")
HYPHENATED = re.compile("(all|reduce|halving)_(reduce|scatter|gather|doubling)")
"""Of names such as ``reduce_scatter``, the terms that are written with a hyphen."""


def kind_name(schedule: Schedule) -> str:
    """What a schedule is called, whatever its size: ``parameter_server(world=8)`` is "parameter server"."""

    def others(found: re.Match[str]) -> str:
        told = [part.replace("=", " ") for part in found[1].split(", ") if not part.startswith("world=")]
        return f" ({', '.join(told)})" if told else ""

    return HYPHENATED.sub(r"\1-\2", PARAMETERS.sub(others, schedule.name)).replace("_", " ").strip()


def schedule_name(schedule: Schedule) -> str:
    """What a schedule is called, and its size: "parameter server, 8 ranks". A name without parameters tells enough."""
    size = f", {plural(schedule.world, 'rank')}" if PARAMETERS.search(schedule.name) else ""
    return kind_name(schedule) + size


def sentence(words: str) -> str:
    """``words`` with a capital."""
    return words[:1].upper() + words[1:]


def chunk_name(chunk: int, n_chunks: int) -> str:
    """Letters, which no one takes for ranks, as long as there are enough of them."""
    return chr(ord("a") + chunk) if n_chunks <= 26 else str(chunk)


def headline(state: State) -> str:
    """What there is to see, the title of the picture. Rounds are counted from 1, as "all-gather, round 1 of 3"."""
    total, index = len(state.schedule.rounds), state.index
    if state.phase:
        name, number, rounds = state.phase
        return f"{name.capitalize()}, round {number} of {rounds}: {_finding(state)}"
    position = f"Round {index} of {total}" if index else f"Before round 1 of {total}" if total else "No rounds"
    return f"{position}: {_finding(state)}"


def _finding(state: State) -> str:
    cells = sum(len(row) for row in state.kinds) - state.number_of("empty")
    complete, fault = state.number_of("complete"), state.number_of("fault")
    if not cells:
        return "the buffers are empty"
    if cells == 1:
        found = "the only cell is complete" if complete else "the only cell is not complete"
    elif complete in (0, cells):
        found = f"all {cells} cells are complete" if complete else "no cell is complete"
    else:
        found = f"{complete} of {cells} cells are complete"
    if fault:
        found += f"; {fault} {'counts' if fault == 1 else 'count'} a contribution twice"
    return found


def moves(state: State) -> str:
    """What the last round did, in one line."""
    if state.index == 0:
        return "nothing has been sent"
    if not state.messages:
        return "nothing is sent"
    if len(state.messages) == 1:
        return tell(state.messages[0], state.schedule.n_chunks)
    added = sum(m.reduce for m in state.messages)
    ways = (added, "added"), (len(state.messages) - added, "stored")
    return ", ".join(f"{plural(n, 'chunk')} {'is' if n == 1 else 'are'} sent and {how}" for n, how in ways if n)


def tell(message: Message, n_chunks: int) -> str:
    """One message as a sentence."""
    name, verb = chunk_name(message.chunk, n_chunks), "adds" if message.reduce else "stores"
    return f"rank {message.source} sends chunk {name} to rank {message.dest}, which {verb} it"


def alternative(state: State) -> str:
    """The picture for those who do not see it: title, messages, totals."""
    told = [tell(m, state.schedule.n_chunks) for m in state.messages[:MOST_MESSAGES]]
    if len(state.messages) > MOST_MESSAGES:
        told.append(f"{len(state.messages)} messages in all")
    what = "; ".join(told) or moves(state)
    name = sentence(schedule_name(state.schedule))
    return f"{name}. {headline(state)}. {sentence(what)}. {totals(state)}."


def totals(state: State) -> str:
    """Messages, bytes and complete cells, from the first round on."""
    sent = state.traffic.sent_bytes.tolist()
    messages = plural(state.traffic.messages, "message", ",")
    whole, most = bytes_in_words(sum(sent)), bytes_in_words(max(sent))
    each = f"each rank has sent {most}" if len(set(sent)) == 1 else f"no rank has sent more than {most}"
    return f"So far {messages} and {whole} in all; {each}"


def description(state: State) -> str:
    """Every cell in words, rank by rank."""
    n_chunks = state.schedule.n_chunks
    names = [chunk_name(chunk, n_chunks) for chunk in range(n_chunks)]
    ranks = []
    for rank, row in enumerate(zip(state.values, state.kinds, strict=True)):
        cells = (f"{name} {value or '–'} ({MEANING[kind]})" for name, value, kind in zip(names, *row, strict=True))
        ranks.append(f"Rank {rank}: {'; '.join(cells)}.")
    return " ".join(ranks)
