"""Flight Recorder dumps of any program, read from a folder: torch's pickles, or JSON.

Loading a pickle may run code. This module reads only pickles made of numbers, strings, lists, tuples and dictionaries,
which is all that torch writes.
"""

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dpbook.core import InvalidArgument, check_int, plural, ranks_in_words
from dpbook.runs.postmortem import collective_calls
from dpbook.runs.postmortem.collective_calls import CallRecords, call_records, locate_call
from dpbook.runs.postmortem.flight_recorder import call_record

_FILE_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d+)(?P<suffix>\.json|\.pickle|\.pkl)?")
MAX_BYTES = 2**30
"""Largest dump that is read; torch's have some MB."""
MAX_RANKS = 2**20
MAX_NUMBER = 2**63
"""Largest number in a dump, as torch's own numbers have 64 bits."""
_EXPECTED = "a Flight Recorder dump with entries, pg_config and version"


@dataclass(frozen=True)
class Dumps:
    """The dumps of a run.

    ``records``: the collectives of the ranks. ``missing``: the ranks without a dump. ``messages``: the number of
    point-to-point messages, which are omitted because they are not numbered alike on all ranks. ``guessed_groups``:
    groups whose ranks torch did not record; their known ranks are those that called a collective in them.
    """

    records: CallRecords
    missing: tuple[int, ...]
    messages: int
    guessed_groups: frozenset[str]

    def diagnosis(self) -> str:
        """Return what is wrong, or why that is unknown; "" if all ranks are known and completed the same calls."""
        records = self.records
        fault = collective_calls.describe_mismatch(records) or collective_calls.describe_late_ranks(records)
        fault = fault or self._waits_in_guessed_groups() or collective_calls.describe_unfinished_call(records)
        if fault:
            return fault
        if not any(calls.calls for calls in records.ranks.values()):
            return "no rank recorded a collective"
        if self.missing:
            same = f"{ranks_in_words(records.ranks)} called the same collectives, and all of them completed"
            return f"{same}; {ranks_in_words(self.missing)} left no dump"
        return ""

    def _waits_in_guessed_groups(self) -> str:
        """Name the ranks that wait in a group whose other ranks are unknown, and those that wait in none; or ""."""
        ranks = self.records.ranks
        idle = [rank for rank, calls in ranks.items() if not calls.pending]
        waits = []
        for key in self.records.keys:
            pending = [rank for rank in key[1] if rank in ranks and key in ranks[rank].pending]
            guessed = key[0].rpartition(" ")[2] in self.guessed_groups and not set(key[1]) & set(self.missing)
            if guessed and pending:
                call = locate_call(self.records, ranks[pending[0]].pending[key])
                waits.append(f"{ranks_in_words(pending)} waited in {call}")
        if not waits:
            return ""
        late = f"; {ranks_in_words(idle)} waited in no collective" if idle else ""
        return f"{'; '.join(waits)}; the dumps do not list the other ranks of this group{late}"

    def __str__(self) -> str:
        missing = [f"  {ranks_in_words(self.missing)}: no dump"] if self.missing else []
        messages = [f"  {plural(self.messages, 'message')} (send, recv) not compared"] if self.messages else []
        return "\n".join([collective_calls.describe_positions(self.records), *missing, *messages])


def read_dumps(folder: Path, prefix: str | None = None, world: int | None = None) -> Dumps:
    """Read the dumps in ``folder``, one file per rank: ``prefix``, the rank's number, perhaps .json or .pickle.

    ``world`` is the number of ranks. None takes the number that torch recorded, which it does not over gloo, or else
    the number of the last file.

    Raises:
        InvalidArgument: if there is no dump, if the folder has files of several runs and ``prefix`` does not choose
            one, if a file is not a dump, or if there are more ranks than ``world``.
    """
    dumps = {rank: _load(path) for rank, path in _files(folder, prefix).items()}
    callers: dict[str, list[int]] = {}
    for rank, dump in sorted(dumps.items()):
        for group in {call["group"] for call in dump["calls"]}:
            callers.setdefault(group, []).append(rank)
    listed = {group: ranks for dump in dumps.values() for group, ranks in dump["groups"].items() if ranks}
    groups, guessed = callers | listed, frozenset(callers.keys() - listed.keys())
    n_ranks = max(len(groups.get("0", ())), 1 + max(dumps))
    if world is not None:
        n_ranks, guessed = check_int("world", world, n_ranks, MAX_RANKS), guessed - {"0"}
    groups["0"] = list(range(n_ranks))
    return Dumps(
        call_records({rank: dump | {"groups": groups} for rank, dump in dumps.items()}, n_ranks),
        tuple(sorted(set(range(n_ranks)) - dumps.keys())),
        sum(dump["messages"] for dump in dumps.values()),
        guessed,
    )


def _files(folder: Path, prefix: str | None) -> dict[int, Path]:
    """Return the file of each rank, of the one run that lies in the folder or has the prefix."""
    if not folder.is_dir():
        raise InvalidArgument("folder", str(folder), "a folder with the dumps of a run")
    runs: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _FILE_NAME.fullmatch(path.name)
        if match and path.is_file() and prefix in (None, match["prefix"]):
            if len(match["rank"]) > len(str(MAX_RANKS)) or int(match["rank"]) >= MAX_RANKS:
                raise InvalidArgument(path.name, match["rank"], f"named after a rank, less than {MAX_RANKS:,}")
            runs.setdefault(f"{match['prefix']}N{match['suffix'] or ''}", {})[int(match["rank"])] = path
    if not runs:
        expected = "a folder with one file per rank, whose name ends with the rank, such as trace_rank_0"
        raise InvalidArgument("folder", str(folder), expected)
    if len(runs) > 1:
        names = ", ".join(sorted(runs))
        raise InvalidArgument("folder", str(folder), f"a folder with one run; choose one of {names} with --prefix")
    return next(iter(runs.values()))


def _load(path: Path) -> dict[str, Any]:
    """Read what is used of a file: "calls", as `call_record` returns them, "messages", and the ranks of "groups"."""
    if path.stat().st_size > MAX_BYTES:
        raise InvalidArgument(path.name, f"{path.stat().st_size:,} bytes", f"at most {MAX_BYTES:,}")
    content = path.read_bytes()
    try:
        return _check(json.loads(content) if content[:1] == b"{" else _PlainUnpickler(io.BytesIO(content)).load())
    except _ForeignObject as error:
        expected = "made of numbers, strings and lists; nothing of it was run"
        raise InvalidArgument(path.name, str(error), expected) from None
    except Exception as error:
        raise InvalidArgument(path.name, f"{type(error).__name__}: {error}", _EXPECTED) from None


def _check(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Check the types and sizes of what torch writes: the comparison relies on them."""
    calls = [_checked_call(entry) for entry in dump["entries"] if not entry["is_p2p"]]
    configured = dump.get("pg_config", {}).items()
    groups = {_printable(group.get("name", key)): _ranks(group["ranks"]) for key, group in configured}
    return {"calls": calls, "messages": len(dump["entries"]) - len(calls), "groups": groups}


def _checked_call(entry: Mapping[str, Any]) -> dict[str, Any]:
    call = call_record(entry)
    texts = {part: _printable(call[part]) for part in ("backend", "group", "op", "call_site")}
    sizes = [[check_int("a size", length, 0, MAX_NUMBER) for length in size] for size in call["sizes"]]
    number = check_int("collective_seq_id", call["number"], 0, MAX_NUMBER)
    return call | texts | {"number": number, "sizes": sizes, "dtypes": [_printable(name) for name in call["dtypes"]]}


def _printable(value: object) -> str:
    """Return a name without control characters: a stranger's file must not steer the terminal."""
    if not isinstance(value, str | int):
        raise TypeError(f"{type(value).__name__} where a name is expected")
    return "".join(character if character.isprintable() else "?" for character in str(value))


def _ranks(value: object) -> list[int]:
    """Return the ranks of a group, which torch writes as a list or as its text."""
    ranks = re.findall(r"\d+", value) if isinstance(value, str) else value
    assert isinstance(ranks, list), "ranks that are not a list"
    return [check_int("a rank", int(rank), 0, MAX_RANKS) for rank in ranks]


class _ForeignObject(pickle.UnpicklingError): ...


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that finds no class and no function, so that nothing can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _ForeignObject(f"a pickle that asks for {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise _ForeignObject("a pickle with references")
