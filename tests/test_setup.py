"""Are the pins whole, and does the set-up say what is wrong instead of leaving half an environment?"""

import os
import pty
import re
import shutil
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from dpbook.app import command_line
from dpbook.core import checkout
from tests.cases import each

ROOT = checkout.root()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [Requirement(line) for line in sum(EXTRAS.values(), PROJECT["dependencies"])]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


@each("requirement", DIRECT)
def test_a_direct_dependency_is_pinned_inside_its_range(requirement):
    assert requirement.specifier.contains(PINS[requirement.name])


def test_a_command_names_what_the_extra_of_the_book_has():
    assert sorted(command_line.BOOK) == sorted(Requirement(line).name for line in EXTRAS["book"])


def test_every_line_of_the_constraints_is_a_pin_of_a_public_version():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(PINS)
    assert not [name for name, version in PINS.items() if "+" in version]
    assert "pip" not in PINS


@pytest.fixture
def checkout(tmp_path):
    """Files of a checkout that the set-up needs."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/venv.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def python_that(checkout, script):
    """A stand-in for Python: answers the version check, and does ``script`` for everything else."""
    path = checkout / "python-for-the-test"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exit 0\n[ "$1" = --version ] && echo Python 3.11 && exit 0\n{script}\n'
    )
    path.chmod(0o755)
    return path


def make(checkout, python, arguments="--allow-root"):
    command = ["make", "lab", f"PYTHON={python}", f"ARGS={arguments}", "CONSTRAINTS=constraints.txt"]
    path = f"{checkout}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=checkout, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("user", "arguments", "allowed"),
    [
        (0, "", False),
        (0, "--port 9000", False),
        (0, "--port 9000 --allow-root", True),
        (0, "--help", True),
        (1000, "--port 9000", True),
    ],
)
def test_root_is_refused_before_anything_is_installed(checkout, user, arguments, allowed):
    (checkout / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (checkout / "id").chmod(0o755)
    run = make(checkout, python_that(checkout, FAKE_VENV % "exit 0"), arguments)
    assert (run.returncode == 0) == allowed
    assert (checkout / ".venv").exists() == allowed
    assert ("make lab ARGS=--allow-root" in run.stderr) != allowed


def test_a_python_without_ensurepip_is_told_what_to_install_and_leaves_nothing(checkout):
    run = make(checkout, python_that(checkout, "mkdir -p .venv/bin; echo 'ensurepip is not available'; exit 1"))
    assert run.returncode != 0
    assert "apt install python3-venv" in run.stderr
    assert not (checkout / ".venv").exists()


def test_a_machine_without_a_new_enough_python_is_reported(checkout):
    run = make(checkout, "no-such-python")
    assert run.returncode != 0
    assert "Python 3.11 or newer" in run.stderr
    assert not (checkout / ".venv").exists()


FAKE_VENV = """
mkdir -p .venv/bin
cat > .venv/bin/python <<'SH'
#!/bin/sh
[ "$1" = -c ] && exit 0
case "$*" in *install*) echo "$*" >> pip.log; %s ;; esac
SH
chmod +x .venv/bin/python
"""


def test_an_installation_that_stopped_is_taken_up_again(checkout):
    python = python_that(checkout, FAKE_VENV % "exit 1")
    for attempt in (1, 2):
        assert make(checkout, python).returncode != 0
        assert len((checkout / "pip.log").read_text().splitlines()) == attempt


PIP = """Obtaining file:///book
Requirement already satisfied: numpy
Collecting torch>=2.9
  Downloading torch-2.13.0-cp311.whl.metadata (30 kB)
Collecting sympy
  Downloading sympy-1.14.0.whl (6.3 MB)
Downloading torch-2.13.0-cp311.whl (915.0 MB)
Using cached networkx-3.5.whl (2.0 MB)
Installing collected packages: torch, sympy, networkx
Successfully installed torch-2.13.0 sympy-1.14.0 networkx-3.5
"""


@pytest.mark.parametrize("status", [0, 1])
def test_the_installation_shows_what_is_fetched_and_an_error(checkout, status):
    (checkout / "pip.out").write_text(PIP)
    run = make(checkout, python_that(checkout, FAKE_VENV % f"cat pip.out; echo 'no matching wheel' >&2; exit {status}"))
    output = run.stdout.splitlines()
    begin = output.index("Installing dpbook[book] (the first time takes some minutes)")
    assert output[begin + 1 : begin + 5] == [
        "  Downloading sympy-1.14.0.whl (6.3 MB)",
        "  Downloading torch-2.13.0-cp311.whl (915.0 MB)",
        "  Using cached networkx-3.5.whl (2.0 MB)",
        "  Putting the packages into .venv",
    ]
    assert "no matching wheel" in run.stderr
    assert (run.returncode == 0) == (status == 0)
    assert (checkout / ".venv" / ".ready-lab").exists() == (status == 0)


def test_on_a_terminal_one_line_says_all_of_it(checkout):
    (checkout / "pip.out").write_text(PIP)
    python_that(checkout, FAKE_VENV % "cat pip.out; exit 0")
    command = ["tools/venv.sh", "lab"]
    env = {**os.environ, "PYTHON": str(checkout / "python-for-the-test")}
    ours, its = pty.openpty()
    with os.fdopen(ours, "rb", 0) as terminal:
        subprocess.run(command, cwd=checkout, env=env, stdout=its, stderr=its, check=True, timeout=60)
        os.close(its)
        output = b"".join(iter(lambda: read(terminal), b"")).decode()
    lines = output.split("\r\n")
    begin = next(number for number, line in enumerate(lines) if line.startswith("Installing dpbook"))
    assert [part.strip() for part in lines[begin + 1].split("\r\033[K")] == [
        "",
        "looking at package 1: torch>=2.9",
        "looking at package 2: sympy",
        "Downloading sympy-1.14.0.whl (6.3 MB)",
        "Downloading torch-2.13.0-cp311.whl (915.0 MB)",
        "Using cached networkx-3.5.whl (2.0 MB)",
        "Putting the packages into .venv",
        "",
    ]


def read(terminal):
    """Text that stays in a terminal that nobody writes to any more."""
    try:
        return terminal.read(4096)
    except OSError:  # Linux says it so
        return b""


def test_a_second_run_installs_nothing_and_a_changed_pin_does(checkout):
    python = python_that(checkout, FAKE_VENV % "exit 0")
    for _ in range(2):
        assert make(checkout, python).returncode == 0
    assert len((checkout / "pip.log").read_text().splitlines()) == 1
    with (checkout / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert make(checkout, python).returncode == 0
    assert len((checkout / "pip.log").read_text().splitlines()) == 2


def test_what_has_more_is_enough_and_only_proofs_have_nbgrader(checkout):
    python_that(checkout, FAKE_VENV % "exit 0")
    env = {**os.environ, "PYTHON": str(checkout / "python-for-the-test")}
    for what in ("lab", "dev", "lab", "proof", "dev", "lab", "proof"):
        subprocess.run(["tools/venv.sh", what], cwd=checkout, env=env, capture_output=True, check=True, timeout=60)
    asked = [line.split()[-1] for line in (checkout / "pip.log").read_text().splitlines()]
    assert asked == [".[book]", ".[book,dev]", ".[book,dev,class,frameworks]"]


def test_an_environment_that_no_longer_works_is_made_anew(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "half").touch()
    assert make(checkout, python_that(checkout, FAKE_VENV % "exit 0")).returncode == 0
    assert not (checkout / ".venv" / "half").exists()


def test_clean_keeps_the_readers_work(checkout):
    (checkout / "workbook").mkdir()
    (checkout / "workbook" / "mine.ipynb").touch()
    (checkout / ".venv").mkdir()
    subprocess.run(["make", "clean"], cwd=checkout, capture_output=True, timeout=60)
    assert not (checkout / ".venv").exists()
    assert (checkout / "workbook" / "mine.ipynb").exists()
