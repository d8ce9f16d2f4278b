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

from dpbook.core import InvalidArgument, plural
from dpbook.ranks.calls import Records, records
from dpbook.ranks.compared import name, positions
from dpbook.ranks.recorder import told

_FILE = re.compile(r"(?P<prefix>.*?)(?P<rank>\d+)(?P<suffix>\.json|\.pickle|\.pkl)?")
MOST = 2**30
"""Bytes of a dump that are read: those of torch have some MB."""
_RECORDED = "a Flight Recorder dump with entries, pg_config and version"


@dataclass(frozen=True)
class Dumps:
    """What was found: the ``records`` of the ranks, of which ranks there is none, and how many messages from one rank
    to another were left out, since they are not numbered alike on all ranks."""

    records: Records
    missing: tuple[int, ...]
    messages: int

    def __str__(self) -> str:
        missing = [f"  {name(self.missing)}: no dump"] if self.missing else []
        messages = [f"  {plural(self.messages, 'message')} (send, recv) not compared"] if self.messages else []
        return "\n".join([positions(self.records), *missing, *messages])


def read_dumps(folder: Path, prefix: str | None = None) -> Dumps:
    """The dumps in ``folder``, one file per rank: ``prefix``, the rank's number, perhaps .json or .pickle.

    Raises
    ------
    InvalidArgument
        If there is none, if files of several runs lie there and ``prefix`` says not which, or if one is no dump.
    """
    dumps = {rank: _loaded(path) for rank, path in _files(folder, prefix).items()}
    groups = _groups(dumps)
    world = max(len(groups.get("0", ())), 1 + max(dumps))
    groups["0"] = list(range(world))
    entries = {rank: dump["entries"] for rank, dump in dumps.items()}
    calls = {rank: [told(entry) for entry in of if not entry["is_p2p"]] for rank, of in entries.items()}
    return Dumps(
        records({rank: {"groups": groups, "calls": of} for rank, of in calls.items()}, world),
        tuple(sorted(set(range(world)) - dumps.keys())),
        sum(entry["is_p2p"] for of in entries.values() for entry in of),
    )


def _files(folder: Path, prefix: str | None) -> dict[int, Path]:
    if not folder.is_dir():
        raise InvalidArgument("folder", str(folder), "a folder with the dumps of a run")
    runs: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        found = _FILE.fullmatch(path.name)
        if found and path.is_file() and prefix in (None, found["prefix"]):
            runs.setdefault(f"{found['prefix']}N{found['suffix'] or ''}", {})[int(found["rank"])] = path
    if not runs:
        expected = "a folder with a file per rank, its name ending with the rank's number, as trace_rank_0"
        raise InvalidArgument("folder", str(folder), expected)
    if len(runs) > 1:
        raise InvalidArgument("folder", str(folder), f"of one run; give --prefix: here are {', '.join(sorted(runs))}")
    return next(iter(runs.values()))


def _loaded(path: Path) -> Mapping[str, Any]:
    if path.stat().st_size > MOST:
        raise InvalidArgument(path.name, f"{path.stat().st_size:,} bytes", f"at most {MOST:,}")
    content = path.read_bytes()
    try:
        dump = json.loads(content) if content[:1] == b"{" else _Plain(io.BytesIO(content)).load()
        for entry in dump["entries"]:
            told(entry), entry["is_p2p"]
    except _ForeignObject as error:
        raise InvalidArgument(
            path.name, str(error), "made of numbers, texts and lists; nothing of it was run"
        ) from None
    except Exception as error:
        raise InvalidArgument(path.name, f"{type(error).__name__}: {error}", _RECORDED) from None
    return dump  # type: ignore[no-any-return]


class _ForeignObject(pickle.UnpicklingError):
    pass


class _Plain(pickle.Unpickler):
    """Knows no class and no function, so that nothing can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _ForeignObject(f"a pickle that asks for {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise _ForeignObject("a pickle with references")


def _groups(dumps: Mapping[int, Mapping[str, Any]]) -> dict[str, list[int]]:
    """The ranks of each group, as far as torch wrote them down, which it does not over gloo; else who called in it."""
    groups: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            groups.setdefault(entry["process_group"][0], set()).add(rank)
    known = {one["name"]: one["ranks"] for dump in dumps.values() for one in dump.get("pg_config", {}).values()}
    listed = {group: [int(rank) for rank in re.findall(r"\d+", str(ranks))] for group, ranks in known.items()}
    called = {group: sorted(ranks) for group, ranks in groups.items()}
    return called | {group: ranks for group, ranks in listed.items() if ranks}
