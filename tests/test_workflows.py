"""Do the workflows name what there is: targets of make, files, actions and their inputs?"""

import re
import shlex
import subprocess
import sys

import yaml

from dpbook.core import checkout
from tests.cases import each
from tests.test_setup import DIRECT

ROOT = checkout.root()
FILES = sorted(ROOT.glob(".github/**/*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
A_PATH = re.compile(r"\.?[a-z][\w.-]*(/[\w.-]+)+|[\w-]+\.(py|sh|txt|toml)")


def read(path):
    return yaml.safe_load(path.read_text())


def jobs(workflow):
    """Lists of steps: of a workflow one for each job, of an action the only one."""
    return [workflow["runs"]["steps"]] if "runs" in workflow else [job["steps"] for job in workflow["jobs"].values()]


def complaints(steps):
    """Names in a job's steps that do not exist."""
    made = set()
    for step in steps:
        for line in step.get("run", "").splitlines():
            command, _, written = line.partition(" > ")
            words = shlex.split(command)
            yield from (
                f"no file {w}" for w in words if A_PATH.fullmatch(w) and w not in made and not (ROOT / w).exists()
            )
            if words[0] in ("make", ".ci/run"):
                yield from (f"no target {word}" for word in words[1:] if word not in TARGETS)
            made |= {written}
        if step.get("uses", "").startswith("./"):
            yield from wrong_inputs(ROOT / step["uses"] / "action.yml", step.get("with", {}))
    left = {name for step in steps for name in re.findall(r"--failed (\S+)", str(step.get("env", "")).rstrip("}'"))}
    uploaded = {step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", "")}
    if left != uploaded:
        yield f"left {left}, uploaded {uploaded}"


def wrong_inputs(action, given):
    if not action.exists():
        yield f"no action {action}"
        return
    inputs = read(action)["inputs"]
    yield from (f"no input {name}" for name in given if name not in inputs)
    yield from (
        f"missing input {name}" for name, about in inputs.items() if about.get("required") and name not in given
    )


@each("path", FILES)
def test_a_workflow_names_what_there_is(path):
    assert [problem for steps in jobs(read(path)) for problem in complaints(steps)] == []


WRONG = [
    ("no file tools/lowest_versions.py", {"run": "python3 tools/lowest_versions.py > lowest.txt"}),
    ("no file other.txt", {"run": "python -m pip install -c other.txt torch"}),
    ("no target tests", {"run": "make tests"}),
    ("no target evidence", {"run": ".ci/run evidence"}),
    ("no action", {"uses": "./.github/actions/nothing"}),
    ("missing input python", {"uses": "./.github/actions/environment"}),
    ("no input torch", {"uses": "./.github/actions/environment", "with": {"python": "3.11", "torch": "2.9"}}),
    ("uploaded set()", {"run": ".ci/run", "env": {"ARGS": "--failed somewhere"}}),
    ("uploaded {'nowhere'}", {"uses": "actions/upload-artifact@v4", "with": {"path": "nowhere"}}),
]


@each(("problem", "step"), WRONG)
def test_what_there_is_not_is_found(problem, step):
    (found,) = complaints([step])
    assert problem in found


def test_each_constraints_file_of_the_matrix_is_there_or_made():
    workflow = read(ROOT / ".github/workflows/ci.yml")
    made = {line.partition(" > ")[2] for step in jobs(workflow)[0] for line in step.get("run", "").splitlines()}
    wanted = {row["constraints"] for row in workflow["jobs"]["test"]["strategy"]["matrix"]["include"]}
    assert not [name for name in wanted if name not in made and not (ROOT / name).exists()]
    assert "lowest.txt" in wanted


def test_the_lowest_versions_are_the_lower_ends_of_all_direct_dependencies():
    printed = subprocess.run([sys.executable, "tools/lowest.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    pins = dict(line.split("==") for line in printed.stdout.split())
    assert {one.name: one.specifier.contains(pins[one.name]) for one in DIRECT} == dict.fromkeys(pins, True)
