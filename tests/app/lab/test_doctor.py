"""Does the doctor tell a healthy machine from a broken one, and survive what it looks at?"""

import json
import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from dpbook.app.lab import doctor
from dpbook.app.lab.doctor import Torch
from dpbook.core import Gpu, checkout
from tests.test_setup import EXTRAS, PROJECT


@pytest.fixture(scope="module")
def diagnosis():
    return doctor.diagnose()


@pytest.mark.processes
def test_every_direct_dependency_is_looked_at(diagnosis):
    needed = [Requirement(line) for line in PROJECT["dependencies"] + EXTRAS["book"]]
    assert [(p.name, p.needs) for p in diagnosis.packages] == [(one.name, str(one.specifier)) for one in needed]


@pytest.mark.processes
def test_this_machine_is_ready(diagnosis):
    assert diagnosis.ok, diagnosis.problems


@pytest.mark.processes
def test_the_json_says_what_the_table_says(diagnosis):
    stored = json.loads(diagnosis.to_json())
    assert stored["ok"] is diagnosis.ok
    for package in stored["packages"]:
        assert package["version"] in repr(diagnosis)
    expected = [{"chapter": each.label, "title": each.title, "minutes": each.minutes} for each in diagnosis.chapters]
    assert stored["chapters"] == expected != []
    for chapter in expected:
        assert re.search(
            rf"{chapter['chapter']} +{re.escape(chapter['title'])} +{chapter['minutes']} min", repr(diagnosis)
        )


def test_a_missing_package_is_named():
    assert "not installed" in doctor._package("no-such-package-here", ">=1.0").problem


def test_a_package_that_is_too_old_is_named():
    assert doctor._package("numpy", ">=999.0").problem == "older than 999.0"


@pytest.mark.parametrize(
    ("version", "release"), [("2.13.0+cpu", (2, 13, 0)), ("4.66", (4, 66)), ("9.2.0rc1", (9, 2, 0))]
)
def test_versions_compare_as_numbers(version, release):
    assert doctor._release(version) == release


def test_a_module_that_raises_is_reported_with_its_last_line():
    assert doctor._run_python("-c", "raise ImportError('libmissing.so: not found')") == (
        "",
        "ImportError: libmissing.so: not found",
    )


def test_a_module_that_crashes_the_interpreter_is_reported():
    assert "signal 6" in doctor._run_python("-c", "import os; os.abort()")[1]


def test_a_module_that_never_answers_is_reported(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.5)
    assert "no answer" in doctor._run_python("-c", "import time; time.sleep(60)")[1]


@pytest.mark.parametrize(
    ("torch", "shared", "words"),
    [
        (Torch(cuda="12.9"), None, "no GPU is usable"),
        (Torch(cuda="12.9", gpus=(Gpu("H", 1),)), None, None),
        (Torch(), None, None),
        (Torch(), 64 * 2**20, "shm-size"),
        (Torch(), 2**30, None),
    ],
)
def test_warnings_come_where_they_should_and_nowhere_else(torch, shared, words):
    found = doctor._warnings(torch, shared)
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


@pytest.mark.processes
def test_a_broken_torch_is_a_problem_and_the_rest_is_still_reported(tmp_path):
    """A torch that fails on import stands before the real one on the path."""
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: wrong ELF class')")
    begin = f"import sys; sys.path.insert(0, {str(checkout.root())!r})"
    code = f"{begin}; from dpbook.app import main; sys.exit(main(['doctor']))"
    env = {"PYTHONPATH": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert child.returncode == 1, child.stderr
    assert "wrong ELF class" in child.stdout
    assert "numpy" in child.stdout
