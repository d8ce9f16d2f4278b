"""Do the notebooks still print what they show? Execution and strict comparison under one fixed environment."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpbook import ranks
from dpbook.app.lab import jupyter
from dpbook.app.notebooks import kernels
from dpbook.classroom import share_checks
from dpbook.core import DpbookError, check_int, checkout, machine, temporary_folder, write_atomically

CELL_SECONDS = 240
START_SECONDS = 120
STARTS = 3
"""Most attempts to start a kernel: on a busy machine one may die before it answers."""
# One thread as in `make lab`, whatever the user has set; no progress bars, as their rates differ; fixed hashes.
FIXED = {**machine.ONE_THREAD, "TQDM_DISABLE": "1", "PYTHONHASHSEED": "0"}
LOADED_ONCE = (
    "dpbook.ddp", "dpbook.runs.watching", "dpbook.runs.trainer.trainer", "torch.distributed.optim",
    "torch.distributed.checkpoint", "dpbook.classroom.tasks.check_process",
)  # fmt: skip
"""Modules that the server of ranks imports in advance: many ranks import them, each in 0.1 to 0.4 seconds."""
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
IN_ORDER = ("--dist=loadscope", "--no-loadscope-reorder")
"""A notebook is run by one process; those named first are begun first, so that slow ones do not come last."""
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}


def compare(paths: Sequence[Path], jobs: int = 2, failed: Path | None = None) -> int:
    """Run ``paths`` (notebooks, or folders of them or of tests) through pytest and nbval; return its exit status.

    A notebook that fails is left in the folder ``failed``, if given, with what its cells have shown.
    """
    check_int("jobs", jobs, 1)
    _need("pytest", "nbval", "xdist")
    targets = _targets(paths)
    _check_readable(_notebooks(targets))
    # Names in the report are relative to the root directory: it holds the checkout and whatever lies outside it.
    root = Path(os.path.commonpath([checkout.root(), *targets]))
    if failed:
        failed = _folder_for_failed(failed, root)
    one_notebook = len(targets) == 1 and targets[0].is_file()
    command = [
        *(sys.executable, "-m", "pytest", "-p", "dpbook.app.notebooks.nbval_plugin"),
        *("--nbval", "--nbval-current-env"),
        f"--nbval-cell-timeout={CELL_SECONDS}",
        f"--nbval-kernel-startup-timeout={START_SECONDS}",
        *(("-n", "0") if jobs == 1 or one_notebook else ("-n", str(jobs), *IN_ORDER)),
        f"--rootdir={root}",
        *("-c", str(checkout.root() / "pyproject.toml"), "-o", f"cache_dir={checkout.root() / '.pytest_cache'}"),
        *([f"--failed={failed}"] if failed else []),
        *map(str, targets),
    ]
    with _environment() as env, contextlib.nullcontext(env) if one_notebook else kernels.shared(env) as env:
        return subprocess.run(command, env=env, cwd=checkout.root()).returncode


def _folder_for_failed(folder: Path, root: Path) -> Path:
    """Made where there is none, as an absolute path. Raises `DpbookError` where a notebook that fails must not be."""
    folder = folder.resolve()
    if folder == root:
        raise DpbookError(f"notebooks that fail would overwrite those in {folder}: choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DpbookError(f"cannot write failing notebooks to {folder} ({error.strerror})") from None
    if not os.access(folder, os.W_OK):
        raise DpbookError(f"cannot write failing notebooks to {folder} (it is read-only)")
    return folder


def write(paths: Sequence[Path]) -> int:
    """Execute the notebooks in ``paths`` and store their outputs; one that fails stays as it was (status 1)."""
    _need("nbclient", "nbformat")
    chosen = notebooks(paths)
    if not chosen:
        raise DpbookError("there are no notebooks to write")
    failed = 0
    with _environment() as env:
        for path in chosen:
            problem = _execute(path, env)
            print(f"{path}: {problem or 'written'}", flush=True)
            failed += bool(problem)
    return 1 if failed else 0


def _execute(path: Path, env: dict[str, str]) -> str:
    """Execute one notebook in place, atomically. Returns what went wrong; the file is then as before."""
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    try:
        notebook = _read(path)
    except DpbookError as error:
        return f"not written: {error}"
    try:
        execute(notebook, path.parent, env=env)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"not written: {error}"
    _settle(notebook)
    write_atomically(path, (nbformat.writes(notebook).rstrip("\n") + "\n").encode())
    return ""


def execute(notebook: Any, folder: Path, env: dict[str, str] | None = None) -> None:
    """Run all cells of ``notebook`` (as nbformat has it) in ``folder`` and put their outputs into it.

    A kernel that does not come up, as on a busy machine, is started again. Raises what nbclient raises.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    for left in reversed(range(STARTS)):
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            startup_timeout=START_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            coalesce_streams=True,
            skip_cells_with_tag="nbval-skip",
        )
        try:
            # The standard error is the kernel's own log, not that of the cells.
            client.execute(env=env or dict(os.environ), stderr=subprocess.DEVNULL)
            return
        except DeadKernelError:  # it died later, in a cell
            raise
        except RuntimeError:
            if not left:
                raise


def _settle(notebook: Any) -> None:
    """Keep of an executed notebook what is the same on the next machine, and what reads without a kernel."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["kernelspec"] = dict(KERNELSPEC)
    notebook.metadata["language_info"] = dict(LANGUAGE)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if {"measurement", "interact"} & {*tags} and "nbval-ignore-output" not in tags:
            tags.append("nbval-ignore-output")
        if "interact" in tags:  # its widgets need a kernel, and would be an empty place in a notebook without one
            cell.outputs = []
        for output in cell.get("outputs", []):
            for place in (checkout.root(), sys.prefix, sys.base_prefix) if "traceback" in output else ():
                output["traceback"] = [line.replace(f"{place}{os.sep}", "") for line in output["traceback"]]


def _read(path: Path) -> Any:
    """Return the notebook stored in ``path``. Raises `DpbookError` if there is none."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat stumbles over a malformed file in as many ways as there are
        reason = str(error).strip().partition("\n")[0]
        raise DpbookError(f"it cannot be read as a notebook ({type(error).__name__}: {reason})") from error
    return notebook


def _check_readable(notebooks: Sequence[Path]) -> None:
    """Raise `DpbookError` that names every notebook that cannot be read."""
    problems = []
    for path in notebooks:
        try:
            _read(path)
        except DpbookError as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise DpbookError("\n".join(problems))


def _targets(paths: Sequence[Path]) -> list[Path]:
    """Return ``paths``, or all chapters and solutions if empty. Raises `DpbookError` for a path without notebooks."""
    for path in paths:
        if not path.exists():
            raise DpbookError(f"{path} does not exist")
        if path.is_dir() and not _notebooks([path]) and not any(path.rglob("test_*.py")):
            raise DpbookError(f"{path} contains no notebooks and no tests")
        if not path.is_dir() and path.suffix not in (".ipynb", ".py"):
            raise DpbookError(f"{path} is not a notebook (.ipynb)")
    targets = [path.resolve() for path in paths] or _notebooks(
        [checkout.root() / folder for folder in ("chapters", "exercises/solutions")]
    )
    if not targets:
        raise DpbookError("there are no notebooks to validate")
    return targets


def notebooks(paths: Sequence[Path]) -> list[Path]:
    """Return the notebooks in ``paths`` (notebooks and folders), or all chapters and solutions, as absolute paths.

    Raises `DpbookError` for a path with nothing in it to validate.
    """
    return _notebooks(_targets(paths))


def _notebooks(paths: Sequence[Path]) -> list[Path]:
    """Return the notebooks among ``paths``, and those in the folders among them except hidden ones."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        is_hidden = [any(part.startswith(".") for part in one.relative_to(path).parts) for one in inside]
        found += (one for one, hidden in zip(inside, is_hidden, strict=True) if one.suffix == ".ipynb" and not hidden)
    return found


def _need(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise DpbookError(f"{', '.join(missing)} not installed: `make test` installs what checking needs")


@contextlib.contextmanager
def _environment() -> Iterator[dict[str, str]]:
    """Return the environment in which outputs are stored and compared, without the user's IPython start-up files.

    No kernel keeps its history in a database: one that has to wait for the others says so in a cell's output. All
    notebooks and tests start their ranks through one server: to load torch for each takes three seconds.
    """
    with temporary_folder("ipython") as ipython:
        profile = ipython / "profile_default"
        profile.mkdir()
        (profile / "ipython_config.json").write_text('{"HistoryManager": {"enabled": false}}')
        fixed = {**jupyter.environment(os.environ), **FIXED, "IPYTHONDIR": str(ipython)}
        fixed.pop("MPLBACKEND", None)  # a kernel has its own
        with ranks.shared(fixed, *LOADED_ONCE) as env, share_checks(env) as env:
            yield env
