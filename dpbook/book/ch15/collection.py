"""The exhibits: scripts that are wrong in one way each, with what is known of them, and their cures."""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpbook.core import InvalidArgument

FOLDER = Path(__file__).parent / "exhibits"
SCRIPT = "train.py"
"""What an exhibit's script is called where it runs, so that its name does not tell what is wrong."""


@dataclass(frozen=True)
class Exhibit:
    """A script with one mistake, as `exhibits.toml` declares it.

    Attributes:
        name: of the script in `exhibits/`.
        kind: the number of the kind of trouble, 1 to 25; 0 for one that is not among them.
        title: what is wrong, in a few words.
        symptom: what its user sees.
        tool: who names the cause: "audit", "resume" (the audit's third depth), "launch", or "" for nobody.
        check: the line of the audit that must come first, or the beginning of what the launch says.
        status: of that line.
        says: what it must tell.
        rank, place: where: the rank that is blamed, and the script's line.
        follows: the checks whose lines may stand under it, as its consequences.
        cure: pairs of what stands in the script and what is to stand there.
        why: in a sentence, for the reader.
        chapter: where it is explained.
        thread: where such a case was reported.
        world, updates: ranks, and updates that are watched (0: until the script ends).
        guilty: who does what the others do not: "all", the number of a rank, the "last", that of the "example" which
            is odd, or the "odd" one that the script names; "" where it makes no case to solve.
        worlds: in which it goes wrong alike.
        also: further lines of the script at which it could as well be mended.
    """

    name: str
    kind: int
    title: str
    symptom: str
    tool: str
    cure: tuple[tuple[str, str], ...]
    why: str
    chapter: int
    check: str = ""
    status: str = ""
    says: str = ""
    rank: int | None = None
    place: str = ""
    follows: tuple[str, ...] = ()
    thread: str = ""
    world: int = 3
    updates: int = 4
    guilty: str = ""
    worlds: tuple[int, ...] = (3, 4)
    also: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """The script as it is found."""
        text = (FOLDER / f"{self.name}.py").read_text(encoding="utf-8")
        return text.replace("  # noqa: B007", "")

    @property
    def cured(self) -> str:
        """The script after the cure."""
        text = self.script
        for before, after in self.cure:
            if text.count(before) != 1:
                raise InvalidArgument("cure", before, f"once in {self.name}.py, not {text.count(before)} times")
            text = text.replace(before, after)
        return text

    @property
    def difference(self) -> str:
        """What the cure takes away and adds, line by line, without imports."""
        lines = difflib.ndiff(self.script.splitlines(), self.cured.splitlines())
        return "\n".join(
            line for line in lines if line[0] in "+-" and line[2:].split()[:1] not in ([], ["import"], ["from"])
        )


@cache
def exhibits() -> tuple[Exhibit, ...]:
    """All of them, in the order of the museum."""
    declared = tomllib.loads((Path(__file__).parent / "exhibits.toml").read_text(encoding="utf-8"))["exhibit"]
    return tuple(_exhibit(each) for each in declared)


def _exhibit(declared: dict[str, object]) -> Exhibit:
    cure = tuple((before, after) for before, after in _pairs(declared["cure"]))
    lists = {name: tuple(value) for name, value in declared.items() if isinstance(value, list)}
    return Exhibit(**{**declared, **lists, "cure": cure})  # type: ignore[arg-type]


def _pairs(value: object) -> list[list[str]]:
    assert isinstance(value, list)
    return value


def exhibit(name: str) -> Exhibit:
    """The one of that name. Raises `InvalidArgument`."""
    found = {each.name: each for each in exhibits()}
    if name not in found:
        raise InvalidArgument("name", name, f"one of {', '.join(found)}")
    return found[name]
