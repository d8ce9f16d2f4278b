"""Strict comparison of notebooks, beyond nbval's own. Loaded by ``dpbook validate`` (``pytest -p``).

- a code cell that was never executed fails: nbval passes it without comparing anything;
- a kernel that dies fails its cell at once: nbval waits for the whole cell timeout;
- a kernel that does not start is started again: two that start at once may choose the same port;
- a trailing ``;`` silences a cell as it did when the output was stored: nbval runs cells without history;
- a cell tagged ``measurement`` is compared by its shape: the kinds of its outputs, and its text without the numbers;
- a cell tagged ``interact`` has widgets for numbers of the reader's own: it runs, and stores no output;
- a plot of rounding errors, which differ between processors, is compared by its alternative text;
- what torch 2.9 has gloo print whenever a group is made is left out;
- a notebook that fails is left as it ran where ``--failed`` says.
"""

import re
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import pytest
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell, coalesce_streams

from dpbook.app.notebooks import kernels
from dpbook.app.notebooks.validation import STARTS
from dpbook.figures.card import VARIES

POLL_SECONDS = 1.0
_NUMBER = re.compile(r"[-+]?(\d[\d,_]*\.?\d*(e[-+]?\d+)?|\bnan\b|\binf\b)", re.IGNORECASE)
_VARYING_IMAGE = rf'(<img class="{VARIES}" [^>]*src=")[^"]*'
_GLOO = r"(?m)^.*(?:\[Gloo\] Rank|connected peer ranks is).*\n"
_RAN = pytest.StashKey[list[tuple[Any, list[Any], list[Any]]]]()
"""For each notebook, the cells that ran, with their outputs and failures."""


class _Kernel(RunningKernel):  # type: ignore[misc]  # nbval has no types
    def __init__(self, kernel_name: str, cwd: str, startup_timeout: float) -> None:
        for start in range(STARTS):
            try:
                self._start(kernel_name, cwd, startup_timeout)
                return
            except RuntimeError:
                if start + 1 == STARTS:
                    raise

    def _start(self, kernel_name: str, cwd: str, startup_timeout: float) -> None:
        super().__init__(kernel_name, cwd=cwd, startup_timeout=startup_timeout)

    def execute_cell_input(self, cell_input: str, allow_stdin: bool | None = None) -> str:
        message: str = self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)
        return message

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while end is None or time.monotonic() < end:
            try:
                super().await_reply(msg_id, timeout=POLL_SECONDS)
                return
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died while running this cell") from None
        raise Empty


class _ForkedKernel(_Kernel):
    """Kernel that is forked by a server, see `kernels`."""

    def _start(self, kernel_name: str, cwd: str, startup_timeout: float) -> None:
        self._forked = kernels.Kernel(Path(cwd), startup_timeout)
        self.kc = self._forked.client
        self._ensure_iopub_up()

    def is_alive(self) -> bool:
        return self._forked.is_alive()

    def interrupt(self) -> None:
        self._forked.interrupt()

    def stop(self) -> None:
        self._forked.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the folder of notebooks that fail."""
    parser.addoption("--failed", metavar="DIR", help="leave each notebook that fails here, as it ran")


def pytest_configure() -> None:
    """Let nbval use a kernel that notices its own death and keeps history."""
    import nbval.plugin

    nbval.plugin.RunningKernel = _ForkedKernel if kernels.are_shared() else _Kernel


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check before a cell runs that it was ever executed, and afterwards that a measurement has kept its shape."""
    if not isinstance(item, IPyNbCell):
        return (yield)
    cell, skipped = item.cell, item.options["skip"]
    if cell.source.strip() and cell.execution_count is None and not skipped:
        item.raise_cell_error("This cell was never executed: run dpbook validate --write to store its output")
    item.parent.sanitize_patterns |= {_VARYING_IMAGE: r"\1", _GLOO: ""}
    result = yield
    if "measurement" in cell.metadata.get("tags", []) and not skipped:
        stored, found = shape(coalesce_streams(cell.outputs)), shape(item.test_outputs)
        if stored != found:
            item.raise_cell_error("A measurement's output changed shape", f"stored: {stored}\nfound:  {found}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the outputs of a cell and its failure."""
    report = yield
    if isinstance(item, IPyNbCell) and report.when == "call":
        wrong = [nbformat.v4.new_output("stream", name="stderr", text=report.longreprtext)] if report.failed else []
        item.parent.stash.setdefault(_RAN, []).append((item.cell, item.test_outputs or [], wrong))
    return report


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a notebook's last cell, write it out if a cell failed, and clean up after a kernel that died."""
    if not isinstance(item, IPyNbCell) or (nextitem and nextitem.parent is item.parent):
        return
    # Leave the notebook of which a cell has failed, with what its cells have shown, if it is wanted.
    folder = item.config.getoption("failed")
    ran = item.parent.stash.get(_RAN, [])
    if folder and any(wrong for *_, wrong in ran):
        for cell, outputs, wrong in ran:
            cell.outputs = outputs + wrong
        path = Path(folder, item.path.relative_to(item.config.rootpath))
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(item.parent.nb, path)
    if item.parent.kernel and not item.parent.kernel.is_alive():
        item.parent.kernel.stop()


def shape(outputs: Sequence[Any]) -> list[Any]:
    """Return the kinds of ``outputs`` in order, and their plain text with numbers and runs of blanks replaced."""
    return [_shape(output) for output in outputs]


def _shape(output: Any) -> tuple[str, ...]:
    if output["output_type"] == "stream":
        return (output["name"], _skeleton(re.sub(_GLOO, "", output["text"])))
    if output["output_type"] == "error":
        return ("error", output["ename"])
    data = output["data"]
    kinds = sorted(kind for kind in data if not kind.startswith("application/vnd.jupyter"))
    return (*kinds, _skeleton(data.get("text/plain", "")))


def _skeleton(text: str) -> str:
    """Widths of columns and rules follow the numbers, so they are no part of the shape."""
    text = re.sub(r"([-=─━])\1+", r"\1", _NUMBER.sub("0", text))
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
