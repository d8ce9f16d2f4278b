"""What stands in a pickle for what stays with the judge: the name that its process of an answer finds something by."""

from typing import Any, NoReturn


def found(name: tuple[Any, ...]) -> NoReturn:
    """What a name stands for. Whoever reads puts a function of its own in this one's place."""
    raise LookupError(name)
