"""Pages on the library: each package's public names with their signatures and docstrings, as Markdown."""

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from dpbook.core import shortened

ROOMS = ("collectives", "replicas", "overlap", "planning", "ranks", "ddp", "figures")
LONG = 100
"""Characters from which a signature has a line for each parameter."""
MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
"""A module before the name of a type."""
FUNCTION = re.compile(r"<function (?:[\w.]+\.)?(\w+|<lambda>) at 0x[0-9a-f]+>")
"""The default of a parameter that is a function; its address differs from build to build."""
ARRAY = re.compile(r"numpy\.ndarray\[.*?numpy\.dtype\[(?:numpy\.)?(\w+)\]\]")
FIELDS = re.compile(r"^(Args|Attributes|Fields):\n((?:    .*(?:\n|$))+)", re.MULTILINE)
FIELD = re.compile(r"^    (\w[\w, *]*): ", re.MULTILINE)


def library_pages() -> Iterator[tuple[str, str]]:
    """Yield each package with its page in Markdown. This imports the library, including torch."""
    for room in ROOMS:
        yield room, "\n\n".join(_page(importlib.import_module(f"dpbook.{room}")))


def _page(room: ModuleType) -> Iterator[str]:
    """Yield a package's docstring, its names by the modules that define them, and its constants."""
    yield f"# dpbook.{room.__name__.rpartition('.')[2]}"
    yield _prose(room)
    homes: dict[str, list[Any]] = {}
    constants = []
    for name in dir(room):
        one = getattr(room, name)
        if name.startswith("_") or inspect.ismodule(one):
            continue
        home = getattr(one, "__module__", "") if inspect.isclass(one) or inspect.isfunction(one) else None
        if home is None or home.startswith("typing"):
            constants.append((name, one))
        elif home.startswith(room.__name__):
            homes.setdefault(home, []).append(one)
    yield "Names: " + ", ".join(sorted(f"`{one.__name__}`" for names in homes.values() for one in names)) + "."
    for home, names in sorted(homes.items()):
        yield f"## {home.removeprefix(f'{room.__name__}.')}"
        yield _prose(importlib.import_module(home))
        for one in sorted(names, key=lambda one: inspect.getsourcelines(one)[1]):
            yield from _entry(one)
    if constants := [(name, value) for name, value in constants if name.isupper() and name != "TYPE_CHECKING"]:
        yield "## Constants"
        yield "\n".join(f"- `{name}`: {_content(value)}" for name, value in constants)


def _content(value: Any) -> str:
    """Return the keys of a dictionary, or the value, shortened."""
    if isinstance(value, dict):
        return ", ".join(f"`{key!r}`" for key in value)
    return f"`{shortened(repr(value), 80)}`"


def _entry(one: Any) -> Iterator[str]:
    yield f"### {one.__name__}"
    yield f"```python\n{_signature(one, one.__name__)}\n```"
    yield _prose(one)
    if inspect.isclass(one):
        members = [
            f"- `{_signature(member, name)}`: {_first_paragraph(member)}"
            for name, member in vars(one).items()
            if not name.startswith("_") and member.__doc__ and (inspect.isfunction(member) or _is_property(member))
        ]
        yield "\n".join(members)


def _is_property(member: Any) -> bool:
    return isinstance(member, property) or type(member).__name__ == "cached_property"


def _signature(one: Any, name: str) -> str:
    """Return a name with its parameters, without modules in their types; of a property the name."""
    if _is_property(one):
        return name
    try:
        signature = inspect.signature(one)
    except ValueError:
        return name
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    returned = inspect.Signature.empty if inspect.isclass(one) else signature.return_annotation
    signature = signature.replace(parameters=parameters, return_annotation=returned)
    text = f"{name}{signature}"
    if len(text) > LONG and not inspect.ismethoddescriptor(one) and parameters:
        head, tail = str(signature.replace(parameters=[])).split("()", 1)
        text = f"{name}{head}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){tail}"
    return FUNCTION.sub(r"\1", MODULE.sub("", ARRAY.sub(r"Array[\1]", text.replace("'", ""))))


def _prose(one: Any) -> str:
    """Return a docstring as Markdown: names in one backquote instead of two, arguments and attributes as a list."""

    def as_list(match: re.Match[str]) -> str:
        return f"{match[1]}:\n\n" + FIELD.sub(r"- `\1`: ", match[2])

    return re.sub(r"``(.+?)``", r"`\1`", FIELDS.sub(as_list, inspect.getdoc(one) or ""))


def _first_paragraph(member: Any) -> str:
    return " ".join(_prose(member).partition("\n\n")[0].split())
