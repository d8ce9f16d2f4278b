"""Does the book work where only its wheel is installed, in an empty folder?"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile

import pytest
from packaging.requirements import Requirement

from dpbook.core import checkout
from tests.classroom.submissions import hand_in, solutions
from tests.test_distribution import build
from tests.test_setup import EXTRAS, PROJECT
from tools import autograder

ROOT = checkout.root()
NOTEBOOKS = [*(ROOT / "chapters").glob("*.ipynb"), *(ROOT / "exercises").glob("*.ipynb")]
SECONDS = 120


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with the wheel; all that it needs comes from the packages of the tests' environment."""
    folder = tmp_path_factory.mktemp("installed")
    build(ROOT, folder / "dist", "wheel")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    others = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text("\n".join(others))
    (wheel,) = (folder / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, timeout=SECONDS)
    return folder / "venv"


@pytest.fixture
def dpbook(environment, tmp_path, monkeypatch):
    """Run ``dpbook`` of that environment in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(*arguments):
        command = [str(environment / "bin" / "dpbook"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)

    return run


@pytest.mark.proof
def test_what_needs_the_repository_says_so(dpbook, environment):
    code = "import dpbook; print(dpbook.__file__)"
    python = [str(environment / "bin" / "python"), "-c", code]
    place = subprocess.run(python, capture_output=True, text=True, check=True).stdout
    assert place.startswith(str(environment)), "the tests' own package would be tried"
    for command in (["course", "7", "--to", "course"], ["nbgrader", "class"], ["validate"]):
        run = dpbook(*command)
        assert (run.returncode, run.stdout) == (1, "")
        assert "clone the repository (https://" in run.stderr


@pytest.mark.proof
def test_the_doctor_says_ready_and_names_every_chapter(dpbook):
    run = dpbook("doctor", "--json")
    diagnosis = json.loads(run.stdout)
    assert (run.returncode, diagnosis["ok"]) == (0, True), run.stdout + run.stderr
    assert [chapter["chapter"] for chapter in diagnosis["chapters"]] == [each.label for each in checkout.chapters()]
    needed = {Requirement(line).name for line in PROJECT["dependencies"] + EXTRAS["book"]}
    assert {package["name"] for package in diagnosis["packages"]} == needed


@pytest.mark.proof
def test_the_lab_copies_every_notebook_and_serves_them_with_the_extension(dpbook, environment, tmp_path):
    assert dpbook("lab", "--copy-only").returncode == 0
    copied = [path.relative_to(tmp_path / "workbook") for path in (tmp_path / "workbook").rglob("*.ipynb")]
    assert sorted(copied) == sorted(path.relative_to(ROOT) for path in NOTEBOOKS)
    root = ["--allow-root"] if os.geteuid() == 0 else []
    command = [str(environment / "bin" / "dpbook"), "lab", "--no-browser", *root]
    with (tmp_path / "output.txt").open("w") as output:
        lab = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        address, token = wait_for_address(lab, tmp_path / "output.txt")
        page = read(f"{address}lab?token={token}").decode()
        listed = json.loads(read(f"{address}api/contents/chapters?token={token}"))
    finally:
        lab.send_signal(signal.SIGTERM)
        lab.wait(timeout=SECONDS)
    assert {path["name"] for path in listed["content"]} == {path.name for path in (ROOT / "chapters").glob("*.ipynb")}
    assert '"name": "dpbook"' in page


def wait_for_address(lab, log):
    """Return address and token of the server, as ``dpbook lab`` prints them."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and lab.poll() is None:
        if found := re.search(r"(http://\S+/)lab/tree/\S+\?token=(\w+)", log.read_text()):
            return found[1], found[2]
        time.sleep(0.1)
    raise AssertionError(f"no address: {log.read_text()}")


def read(url):
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return answer.read()


ASKS = "    from pathlib import Path\n    import dpbook\n    Path(dpbook.__file__).parent.joinpath({!r}).read_text()\n"
"""The first lines of an answer that reads a file of the package."""


@pytest.mark.proof
@pytest.mark.parametrize(("file", "points"), [("book/ch01/tasks.toml", 4), ("book/ch01/judge.py", 0)])
def test_an_exercise_is_marked_and_its_judge_is_hidden(dpbook, tmp_path, file, points):
    answers = solutions(1)
    begin = "    ### BEGIN SOLUTION\n"
    assert begin in answers["2"]
    answers["2"] = answers["2"].replace(begin, begin + ASKS.format(file))
    notebook = hand_in(tmp_path / "01_four_phase_loop.ipynb", 1, answers)
    run = dpbook("grade", "--seed", "3", "--json", notebook)
    (submission,) = json.loads(run.stdout)["submissions"]
    tasks = {task["task"]: task["points"] for task in submission["exercises"][0]["tasks"]}
    assert tasks == {"01.1": 2, "01.2": points, "01.3": 3, "01.4": 2}


@pytest.mark.proof
def test_slides_and_pages_are_made_and_a_script_is_launched(dpbook, tmp_path):
    assert dpbook("slides", "05", "--to", "decks").returncode == 0
    assert "All-reduce" in (tmp_path / "decks" / "05_all_reduce.html").read_text(encoding="utf-8")
    assert dpbook("book", "--to", "pages").returncode == 0, "a link leads nowhere"
    assert len([*(tmp_path / "pages").rglob("*all_reduce*.html")]) == 2, "the chapter and its exercise"
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "ones = torch.ones(1)\n"
        "dist.all_reduce(ones)\n"
        "print('ranks', int(ones))\n"
        "dist.destroy_process_group()\n"
    )
    run = dpbook("launch", "--nproc", "2", "train.py")
    assert (run.returncode, run.stdout.splitlines()) == (0, ["ranks 2"]), run.stderr


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="marks are given on Linux alone")
def test_the_autograder_marks_a_submission_as_gradescope_hands_it_in(environment, tmp_path):
    """With the folders that Gradescope makes; the package is installed already."""
    root = tmp_path / "autograder"
    for name in ("source", "submission", "results"):
        (root / name).mkdir(parents=True)
    autograder.write(tmp_path / "autograder.zip")
    with pytest.raises(SystemExit, match="is not overwritten"):
        autograder.write(tmp_path / "autograder.zip")
    with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
        archive.extractall(root / "source")
        names, modes = archive.namelist(), {one.filename: one.external_attr >> 16 for one in archive.infolist()}
    assert {"setup.sh", "run_autograder", "constraints.txt"} < set(names)
    assert len([name for name in names if name.endswith(".whl")]) == 1
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755
    hand_in(root / "submission" / "mine.ipynb", 1, solutions(1))
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run(
        ["sh", str(root / "source" / "run_autograder")],
        env=variables | {"AUTOGRADER": str(root), "PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads((root / "results" / "results.json").read_text())
    assert results["score"] == sum(test["max_score"] for test in results["tests"]) > 0
