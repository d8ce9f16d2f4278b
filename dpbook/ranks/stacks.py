"""Where a rank was: read from what faulthandler wrote of its threads, or from the traceback of its error."""

import os
import re
import sysconfig

from dpbook.core import INSTALLED, PACKAGE

_ANY_STANDARD = re.compile(r"[/\\][Ll]ib[/\\]python3[.\d]*t?[/\\]")
"""In the path of Python's own files, also on another machine."""
_STANDARD = (sysconfig.get_path("stdlib") + os.sep, "<frozen ")
_WAITING = {
    os.path.join("torch", "distributed", "distributed_c10d"): "",
    os.path.join("torch", "distributed", "rendezvous"): "init_process_group",
    os.path.join("torch", "distributed", "utils"): "the making of a wrapper",
    os.path.join("torch", "autograd", "graph"): "backward",  # in which a wrapper averages
    os.path.join("torch", "nn", "parallel", "distributed"): "forward",  # in which DDP sends buffers
    str(PACKAGE / "ranks" / "messages" / "execution"): "",
    str(PACKAGE / "ranks" / "guarding" / "call_check"): "",
}
"""Files through which the stack of a rank passes that waits for others, and in which call; "": the function's name."""


def as_dumped(traceback: str) -> str:
    """The frames of a traceback in faulthandler's order: the innermost first."""
    return "\n".join(reversed(traceback.replace(", in ", " in ").splitlines()))


def call(stack: str) -> str | None:
    """The call in which a rank waited for others, and from where it was called; None where it was in none."""
    for file, _, function in reversed(_within(stack)):
        for place, name in _WAITING.items():
            if place in file:
                return f"{name or function}, {innermost(stack)}"
    return None


def innermost(stack: str) -> str:
    """The innermost frame that is the program's: no installed package's, nor Python's, nor the library's own."""
    frames = _frames(stack)
    own = [frame for frame in frames if _is_own(frame[0])] or frames
    return f"line {own[0][1]} of {own[0][2]}" if own else "an unknown place"


def own_frames(stack: str) -> list[tuple[str, str, int]]:
    """File, function and line of the program's own frames, the outermost first."""
    return [(file, function, int(line)) for file, line, function in reversed(_frames(stack)) if _is_own(file)]


def _frames(stack: str) -> list[tuple[str, str, str]]:
    """File, line and function of the main thread's frames; faulthandler lists the youngest thread first."""
    return re.findall(r'File "(.*)", line (\d+) in (.*)', re.split(r"hread 0x", stack)[-1])


def _within(stack: str) -> list[tuple[str, str, str]]:
    """The frames of what the program called last, the innermost first; all of them where no frame is the program's."""
    frames = _frames(stack)
    return frames[: next((i for i, frame in enumerate(frames) if _is_own(frame[0])), len(frames))]


def _is_own(file: str) -> bool:
    foreign = INSTALLED in file or _ANY_STANDARD.search(file)
    return not foreign and not file.startswith((str(PACKAGE) + os.sep, *_STANDARD))
