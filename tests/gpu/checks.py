"""A check: a function that asserts one claim about code on a GPU, and returns figures that go into the record.

The first line of its docstring is the claim. It raises `NotRun` with the reason where it cannot be tried.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class NotRun(Exception):
    """Raised by a check that this machine cannot try."""


class Check(NamedTuple):
    name: str
    claim: str
    function: Callable[[Any], dict[str, Any]]
    ranks: int
    gpu_only: str
    place: str
    lasting: bool

    @property
    def is_between_ranks(self):
        """Whether several numbers of ranks may show more than one: it is about messages between them."""
        return self.place == "ranks" and (self.ranks > 1 or self.function.__module__ == "tests.gpu.wrappers")

    def why_not(self, kind, world):
        """Return the reason why this check is not tried on a ``kind`` of device with ``world`` ranks; "" if it is."""
        if kind == "sim" and self.gpu_only:
            return f"the stand-in does not imitate {self.gpu_only}"
        return "" if world >= self.ranks else f"it needs {self.ranks} ranks"


CHECKS: dict[str, Check] = {}


def check(*, ranks=1, gpu_only="", place="ranks", lasting=False):
    """Decorator for a check. ``ranks``: the fewest it needs; ``gpu_only``: what a stand-in would have to imitate.

    A check in the place "ranks" is called in every rank of one process group with its `Accelerator`. One in the place
    "host" is called once, with the `Machine`, and starts processes itself. One that is ``lasting`` takes long on the
    stand-in.
    """

    def register(function):
        claim = function.__doc__.partition("\n")[0]
        CHECKS[function.__name__] = Check(function.__name__, claim, function, ranks, gpu_only, place, lasting)
        return function

    return register


CHOICES = "DPBOOK_GPU_CHECKS"
"""Environment variable for the ranks: the kind of device, the file of outcomes, modules of checks, and their names."""
BEGUN = "begun"
"""Key of the line in the file of outcomes that names the check which has begun."""
PROVED, REFUTED, NOT_RUN = "proved", "refuted", "not run"


def call(one, argument):
    """Call a check and return (result, why, figures); what it raises refutes it."""
    try:
        return PROVED, "", one.function(argument) or {}
    except NotRun as reason:
        return NOT_RUN, str(reason), {}


def attempt(one, argument):
    """Call a check and return (result, why, figures), also where it is refuted."""
    try:
        return call(one, argument)
    except Exception as error:
        return REFUTED, f"{type(error).__name__}: {error}".strip(), {}


def all_of(outcomes):
    """Return the outcome of a check from those of its ranks: refuted if on any, with the figures of rank 0."""
    for result in (REFUTED, NOT_RUN):
        found = [(rank, why) for rank, (one, why, _) in enumerate(outcomes) if one == result]
        if found:
            rank, why = found[0]
            return result, f"rank {rank}: {why}" if len(outcomes) > 1 else why, {}
    return outcomes[0]


def line(name, outcome):
    """Return an outcome in a line of text."""
    seconds = f" ({outcome['seconds']:.1f} s)" if outcome.get("seconds") else ""
    why = f": {outcome['why']}" if outcome.get("why") else ""
    return f"{outcome['result']:8} {name}{seconds}{why}"
