"""Does the command name the fault of an unknown script, and leave no files behind?"""

import atexit
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dpbook.app import command_line
from dpbook.core import checkout
from tests.cases import each, lines_of
from tests.runs.audit.scripts import HEAD, RESUMED, SHARDED, bare, loop, model, sampled

pytestmark = pytest.mark.processes
proof = pytest.mark.proof


BOOK = {*command_line.BOOK, "IPython", "ipywidgets", "nbformat", "ipykernel"} - {"filelock", "jinja2"}
"""What an engineer's environment has not, but for what torch itself brings along."""


@functools.cache
def without_the_book():
    """A folder for the module path, with which Python finds none of the book's packages: every command here runs so."""
    folder = Path(tempfile.mkdtemp(prefix="dpbook-blocked-"))
    atexit.register(shutil.rmtree, folder)
    blocked = sorted(set(BOOK) - {"pygments"})  # which pytest needs
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n")
    return folder


def command(folder, text, *options, arguments=()):
    (folder / "train.py").write_text(HEAD + text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(without_the_book()), str(checkout.root())])}
    argv = [sys.executable, "-m", "dpbook", "audit", "--nproc", "2", *map(str, options), "--", "train.py", *arguments]
    return argv, {"cwd": folder, "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def audit(folder, text, *options, arguments=()):
    argv, settings = command(folder, text, *options, arguments=arguments)
    return subprocess.run(argv, **settings, timeout=500)


def test_a_fault_is_reported_on_an_unchanged_script(tmp_path):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    completed = audit(
        tmp_path, bare() + sampled() + loop(), "--json", outside / "verdict.json", "--html", outside / "page.html"
    )
    first, where, *_ = lines_of(completed.stdout)
    assert first.startswith("FAIL  all ranks step with the same gradient  ")
    assert "  4 of 4 gradients differ; no wrapper averages them, and nothing was sent in " in first
    assert "rank 1, 0.weight, update 1   train.py:25  optimizer.step()   chapter 01" in where
    assert completed.returncode == 1
    verdict = json.loads((outside / "verdict.json").read_text())
    assert verdict["lines"][0]["name"] == "gradients"
    assert {line["because"] for line in verdict["lines"] if line["status"] == "FAIL"} == {None, "gradients"}
    assert "no wrapper averages them" in (outside / "page.html").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "train.py"}


SPARE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x):
        return self.used(x)
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
ALONE = """
optimizer.step()
if rank == 0:
    dist.all_reduce(torch.ones(3))
else:
    dist.barrier()
"""


@proof
@pytest.mark.parametrize(
    ("text", "claim", "message"),
    [
        (SPARE + sampled() + loop(), "every parameter that is trained gets a gradient", "spare.weight, spare.bias"),
        (
            model() + sampled() + loop(step="optimizer.step()\nraise ValueError('oh')"),
            "the run finishes without an error",
            "ValueError: oh",
        ),
        (model() + "import sys; sys.exit(3)\n", "the run finishes without an error", "SystemExit: 3"),
        (model() + sampled() + loop(step=ALONE), "the run finishes without an error", "rank 1 skipped collective"),
    ],
    ids=["unused", "raises", "exits", "calls that differ"],
)
def test_a_run_that_fails_is_reported(tmp_path, text, claim, message):
    completed = audit(tmp_path, text, "--timeout", 10)
    first = completed.stdout.splitlines()[0]
    assert (completed.returncode, first.startswith("FAIL")) == (1, True), completed.stdout + completed.stderr
    assert claim in first
    assert message in first
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]  # no log is left either


def test_what_the_book_needs_is_blocked_and_its_commands_say_so(tmp_path):
    _, settings = command(tmp_path, "")
    lab = subprocess.run([sys.executable, "-m", "dpbook", "lab"], **settings, timeout=60)
    assert (lab.returncode, "pip install 'dpbook[book]'" in lab.stderr) == (1, True), lab.stderr


TRAINED = model() + sampled(batch=16) + loop(epoch="sampler.set_epoch(epoch)")


@proof
def test_the_example_of_a_test_in_the_documentation(tmp_path):
    """On a script that is right, and on the same without its wrapper."""
    text = (checkout.root() / "docs" / "audit.md").read_text()
    (tmp_path / "test_train.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    (tmp_path / "conftest.py").write_text(re.search(r"pytest_plugins = .*", text)[0])
    for wrong in (False, True):
        text = bare() + sampled() + loop() if wrong else TRAINED
        _, settings = command(tmp_path, text)
        settings["env"]["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the book's own plugins need what is blocked
        argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "."]
        completed = subprocess.run(argv, **settings, timeout=500)
        assert completed.returncode == wrong, completed.stdout
        assert ("FAIL  all ranks step with the same gradient" in completed.stdout) == wrong


@proof
def test_a_script_without_an_update_is_no_success(tmp_path):
    completed = audit(tmp_path, model() + sampled() + loop(step="for p in model.parameters(): p.data -= 0.1 * p.grad"))
    assert completed.returncode == 2
    assert "does an optimizer of torch.optim step on every rank" in completed.stdout


@proof
def test_a_script_that_is_stopped_gets_a_verdict_on_what_was_seen(tmp_path):
    text = (
        model()
        + sampled()
        + loop(step="optimizer.step()\nopen(f'stepped-{rank}', 'w').close()\nimport time; time.sleep(60)")
    )
    argv, settings = command(tmp_path, text)
    child = subprocess.Popen(argv, **settings)
    while not all((tmp_path / f"stepped-{rank}").exists() for rank in range(2)) and child.poll() is None:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    report, _ = child.communicate(timeout=120)
    assert child.returncode == 128 + signal.SIGINT
    assert "PASS  replicas stay equal" in report
    assert "1 update seen" in report


@proof
def test_a_restart_is_tried_with_the_scripts_own_options(tmp_path):
    completed = audit(
        tmp_path, RESUMED, "--updates", 2, "--save", "--out {folder}", "--resume", "--resume --forget random"
    )
    assert completed.returncode == 1
    assert completed.stdout.startswith("FAIL  random states are restored")
    assert "PASS  the optimizer's state is restored" in completed.stdout


@proof
def test_a_whole_run_may_be_watched_now_and_then(tmp_path):
    completed = audit(tmp_path, SHARDED + sampled() + loop(), "--updates", 0, "--every", 5)
    assert (completed.returncode, "PASS  every epoch has an order of its own" in completed.stdout) == (0, True), (
        completed.stdout
    )


@each("wrong", [["--nproc", "1"], ["--updates", "-1"], ["--every", "0"], ["--html", "nowhere/told.html"]])
def test_bad_options_are_reported(tmp_path, wrong):
    from dpbook.app import main

    (tmp_path / "train.py").write_text("")
    assert main(["audit", *wrong, "--", str(tmp_path / "train.py")]) == 1


def test_without_a_script_it_says_what_it_needs(capsys):
    from dpbook.app import main

    assert main(["audit"]) == 1
    assert "dpbook audit train.py" in capsys.readouterr().err


def test_before_the_ranks_load_torch_it_needs_numpy_alone():
    code = (
        "import sys; from dpbook.app import main; import dpbook.runs.audit.audited_run, dpbook.runs.launch.torchrun;"
        "main(['audit']);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    loaded = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True, check=True).stdout
    others = {"torch", "cloudpickle", "matplotlib", "tqdm", "filelock", "jinja2", "IPython", "jupyterlab"}
    assert (others & {*loaded.split()}, "numpy" in loaded) == (set(), True)
