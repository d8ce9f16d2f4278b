"""The position of a rank, read from the stacks that faulthandler wrote or from the traceback of its error."""

import os
import re
import sysconfig

from dpbook.core import INSTALLED, PACKAGE

_ANY_STDLIB = re.compile(r"[/\\][Ll]ib[/\\]python3[.\d]*t?[/\\]")
"""Part of the paths of Python's own files, also on another machine."""
_STDLIB = (sysconfig.get_path("stdlib") + os.sep, "<frozen ")
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]|^<")
"""Part of the file that IPython names for a cell."""
_WAITING_FILES = {
    os.path.join("torch", "distributed", "distributed_c10d"): "",
    os.path.join("torch", "distributed", "rendezvous"): "init_process_group",
    os.path.join("torch", "distributed", "utils"): "the construction of a wrapper",
    os.path.join("torch", "autograd", "graph"): "backward",  # a wrapper averages in it
    os.path.join("torch", "nn", "parallel", "distributed"): "forward",  # DDP broadcasts buffers in it
    str(PACKAGE / "ranks" / "messages"): "",
    str(PACKAGE / "runs" / "launch" / "collective_check"): "",
}
"""Files on the stack of a rank that waits for others, and the call that they belong to; "": the function's name."""
_WRITERS = str(PACKAGE / "runs" / "launch" / "rank_setup")
"""Beginning of the name of the file whose functions write how a rank has ended."""


def as_dumped(traceback: str) -> str:
    """Return the frames of a traceback in faulthandler's order, the innermost first."""
    return "\n".join(reversed(traceback.replace(", in ", " in ").splitlines()))


def waiting_call(stack: str) -> str | None:
    """Return "barrier, train.py:7 in main": the call in which a rank waits, and its caller; None without one."""
    frames = _frames(stack)
    first = next((index for index, frame in enumerate(frames) if _is_program(frame[0])), len(frames))
    for file, _, function in reversed(frames[:first]):  # those of the program's last call, the outermost first
        for place, name in _WAITING_FILES.items():
            if place in file:
                return f"{name or function}, {innermost(stack)}"
    return None


def innermost(stack: str) -> str:
    """Return "train.py:7 in main", the innermost frame of the program: not of a package, Python or dpbook."""
    frames = _frames(stack)
    program = [frame for frame in frames if _is_program(frame[0])] or frames
    return line_in_words(*program[0]) if program else "an unknown line"


def line_in_words(file: str, line: int | str, function: str) -> str:
    """Return "train.py:7 in main", "train.py:7" outside of a function, or "line 7 of main" in a notebook's cell."""
    if _CELL.search(file):
        return f"line {line} of {function}"
    return f"{os.path.basename(file)}:{line}" + (f" in {function}" if function != "<module>" else "")


def has_ended(stack: str) -> bool:
    """Return True if the program had ended or failed: the launch was writing that down."""
    functions = {function for file, _, function in _frames(stack) if file.startswith(_WRITERS)}
    return not functions.isdisjoint({"end_rank", "write_error"})


def program_frames(stack: str) -> list[tuple[str, str, int]]:
    """Return file, function and line of the program's frames, the outermost first."""
    return [(file, function, int(line)) for file, line, function in reversed(_frames(stack)) if _is_program(file)]


def _frames(stack: str) -> list[tuple[str, str, str]]:
    """Return file, line and function of the main thread's frames; faulthandler lists the youngest thread first."""
    return re.findall(r'File "(.*)", line (\d+) in (.*)', re.split(r"hread 0x", stack)[-1])


def _is_program(file: str) -> bool:
    foreign = INSTALLED in file or _ANY_STDLIB.search(file)
    return not foreign and not file.startswith((str(PACKAGE) + os.sep, *_STDLIB))
