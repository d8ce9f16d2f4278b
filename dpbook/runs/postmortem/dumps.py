"""Flight Recorder dumps of anybody's run, read from a folder: torch's pickles, or JSON.

A pickle may run code when it is loaded. Here only one made of numbers, texts, lists, tuples and dictionaries is read,
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

from dpbook.core import InvalidArgument, check_int, plural
from dpbook.runs.postmortem.call_comparison import behind, difference, name, placed, positions, unended
from dpbook.runs.postmortem.collective_calls import Key, Records, records
from dpbook.runs.postmortem.flight_recorder import told

_FILE = re.compile(r"(?P<prefix>.*?)(?P<rank>\d+)(?P<suffix>\.json|\.pickle|\.pkl)?")
MOST = 2**30
"""Bytes of a dump that are read: those of torch have some MB."""
MOST_RANKS = 2**20
LARGEST = 2**63
"""Of a number in a dump, as of torch's own."""
_RECORDED = "a Flight Recorder dump with entries, pg_config and version"


@dataclass(frozen=True)
class Dumps:
    """What was found: the ``records`` of the ranks, of which ranks there is none, and how many messages from one rank
    to another were left out, since they are not numbered alike on all ranks."""

    records: Records
    missing: tuple[int, ...]
    messages: int
    guessed: frozenset[str] = frozenset()
    """Groups whose ranks torch did not write down: known are those that have called in them."""

    def told(self) -> str:
        """What differs, or why that cannot be said; "" where all ranks are known and ended what they called."""
        if told := difference(self.records) or behind(self.records) or self._waits() or unended(self.records):
            return told
        if not any(record.groups for record in self.records.ranks.values()):
            return "no rank has recorded a collective"
        if self.missing:
            others = name(self.records.ranks)
            return f"{others} made the same calls, and all of them ended; of {name(self.missing)} nothing is known"
        return ""

    def _waits(self) -> str:
        """Who waits in a group of which nobody knows who else is in it, and who, being late, in no call; or ""."""
        idle = [rank for rank in self.records.ranks if not self.records.pending(rank)]
        told = [
            f"{name(ranks)} waited in {placed(self.records, key, call)}"
            for key in self.records.keys
            if key[0].rpartition(" ")[2] in self.guessed and not set(key[1]) & set(self.missing)
            for call in [self.records.ranks[key[1][0]].last(key)]
            if call and (ranks := [rank for rank in key[1] if self._pends(rank, key)])
        ]
        if not told:
            return ""
        late = f"; {name(idle)} waited in no call" if idle else ""
        return f"{'; '.join(told)}; the dumps do not say who else is to come{late}"

    def _pends(self, rank: int, key: Key) -> bool:
        last = self.records.ranks[rank].last(key)
        return last is not None and not last.ended

    def __str__(self) -> str:
        missing = [f"  {name(self.missing)}: no dump"] if self.missing else []
        messages = [f"  {plural(self.messages, 'message')} (send, recv) not compared"] if self.messages else []
        return "\n".join([positions(self.records), *missing, *messages])


def read_dumps(folder: Path, prefix: str | None = None, world: int | None = None) -> Dumps:
    """The dumps in ``folder``, one file per rank: ``prefix``, the rank's number, perhaps .json or .pickle.

    ``world``: how many ranks there were; if None, as many as torch wrote down, which it does not over gloo, or as there
    are files up to the last rank.

    Raises
    ------
    InvalidArgument
        If there is none, if files of several runs lie there and ``prefix`` says not which, if one is no dump, or if
        there are more ranks than ``world``.
    """
    dumps = {rank: _loaded(path) for rank, path in _files(folder, prefix).items()}
    groups, guessed = _groups(dumps)
    seen = max(len(groups.get("0", ())), 1 + max(dumps))
    if world is not None:
        seen, guessed = check_int("world", world, seen, MOST_RANKS), guessed - {"0"}
    groups["0"] = list(range(seen))
    return Dumps(
        records({rank: {"groups": groups, "calls": dump.calls} for rank, dump in dumps.items()}, seen),
        tuple(sorted(set(range(seen)) - dumps.keys())),
        sum(dump.messages for dump in dumps.values()),
        guessed,
    )


def _files(folder: Path, prefix: str | None) -> dict[int, Path]:
    if not folder.is_dir():
        raise InvalidArgument("folder", str(folder), "a folder with the dumps of a run")
    runs: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        found = _FILE.fullmatch(path.name)
        if found and path.is_file() and prefix in (None, found["prefix"]):
            if len(found["rank"]) > len(str(MOST_RANKS)) or int(found["rank"]) >= MOST_RANKS:
                raise InvalidArgument(path.name, found["rank"], f"named after a rank, less than {MOST_RANKS:,}")
            runs.setdefault(f"{found['prefix']}N{found['suffix'] or ''}", {})[int(found["rank"])] = path
    if not runs:
        expected = "a folder with a file per rank, its name ending with the rank's number, as trace_rank_0"
        raise InvalidArgument("folder", str(folder), expected)
    if len(runs) > 1:
        raise InvalidArgument("folder", str(folder), f"of one run; give --prefix: here are {', '.join(sorted(runs))}")
    return next(iter(runs.values()))


@dataclass(frozen=True)
class _Dump:
    """What is used of a file: ``calls`` as `recorder.told` has them, and the ranks of ``groups`` if they are told."""

    calls: list[dict[str, Any]]
    messages: int
    groups: dict[str, list[int]]


def _loaded(path: Path) -> _Dump:
    if path.stat().st_size > MOST:
        raise InvalidArgument(path.name, f"{path.stat().st_size:,} bytes", f"at most {MOST:,}")
    content = path.read_bytes()
    try:
        return _checked(json.loads(content) if content[:1] == b"{" else _Plain(io.BytesIO(content)).load())
    except _ForeignObject as error:
        raise InvalidArgument(
            path.name, str(error), "made of numbers, texts and lists; nothing of it was run"
        ) from None
    except Exception as error:
        raise InvalidArgument(path.name, f"{type(error).__name__}: {error}", _RECORDED) from None


def _checked(dump: Mapping[str, Any]) -> _Dump:
    """Of the types and sizes that torch writes: what follows relies on them."""
    calls = [_call(entry) for entry in dump["entries"] if not entry["is_p2p"]]
    groups = {_text(one.get("name", key)): _ranks(one["ranks"]) for key, one in dump.get("pg_config", {}).items()}
    return _Dump(calls, len(dump["entries"]) - len(calls), groups)


def _call(entry: Mapping[str, Any]) -> dict[str, Any]:
    call = told(entry)
    texts = {part: _text(call[part]) for part in ("backend", "group", "op", "where")}
    sizes = [[check_int("a size", each, 0, LARGEST) for each in size] for size in call["sizes"]]
    number = check_int("collective_seq_id", call["number"], 0, LARGEST)
    return call | texts | {"number": number, "sizes": sizes, "dtypes": [_text(each) for each in call["dtypes"]]}


def _text(value: object) -> str:
    """As it can be printed: a stranger's file must not steer the terminal."""
    if not isinstance(value, str | int):
        raise TypeError(f"{type(value).__name__} where a name is expected")
    return "".join(each if each.isprintable() else "?" for each in str(value))


def _ranks(told: object) -> list[int]:
    ranks = re.findall(r"\d+", told) if isinstance(told, str) else told
    assert isinstance(ranks, list), "ranks that are no list"
    return [check_int("a rank", int(rank), 0, MOST_RANKS) for rank in ranks]


class _ForeignObject(pickle.UnpicklingError):
    pass


class _Plain(pickle.Unpickler):
    """Knows no class and no function, so that nothing can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _ForeignObject(f"a pickle that asks for {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise _ForeignObject("a pickle with references")


def _groups(dumps: Mapping[int, _Dump]) -> tuple[dict[str, list[int]], frozenset[str]]:
    """The ranks of each group, as far as torch wrote them down, which it does not over gloo; else who called in it, and
    of which groups no more is known.
    """
    called: dict[str, list[int]] = {}
    for rank, dump in sorted(dumps.items()):
        for group in {call["group"] for call in dump.calls}:
            called.setdefault(group, []).append(rank)
    listed = {group: ranks for dump in dumps.values() for group, ranks in dump.groups.items() if ranks}
    return called | listed, frozenset(called.keys() - listed.keys())
