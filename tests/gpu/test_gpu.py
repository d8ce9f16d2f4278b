"""Does the proof for GPUs pass on the stand-in, with little more than torch, and refute what is wrong?"""

import importlib
import json
import os
import subprocess
import sys

import pytest

from dpbook.book.sim import missing
from dpbook.core import DpbookError, checkout
from dpbook.ranks import start
from tests.gpu.checks import CHECKS, CHOICES, NOT_RUN, PROVED, REFUTED, all_of

needs_sim = pytest.mark.skipif(missing() is not None, reason=str(missing()))
processes = pytest.mark.processes
NOT_INSTALLED = """import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    names = {"cloudpickle", "filelock", "hypothesis", "ipywidgets", "IPython", "jupyterlab", "matplotlib", "nbformat",
             "pytest", "tqdm"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in cls.names else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.meta_path[:] = [finder for finder in sys.meta_path if not str(finder.__module__).startswith("__editable__")]
"""


@pytest.fixture(scope="module")
def proof():
    """The module that makes the proof, which loads all training programs."""
    return importlib.import_module("tests.gpu.proof")


def chosen(group):
    """Return the names of the checks in a group."""
    if group == "lasting":
        return [one.name for one in CHECKS.values() if one.lasting]
    if group == "hybrid":
        return ["hybrid_sharding_has_the_losses_of_ddp", "the_script_for_sharding_resumes"]
    return [one.name for one in CHECKS.values() if not one.lasting]


@pytest.fixture
def bare(tmp_path):
    """An environment whose Python finds neither the extra `book` nor what tests need, nor an installed dpbook."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(NOT_INSTALLED)
    return os.environ | {"PYTHONPATH": str(tmp_path / "bare")}


def proved(names, numbers, environment, path):
    """Run the command, and return the records, in which nothing is refuted, by the number of ranks."""
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, "-m", "tests.gpu", "--device", "sim", "--ranks", *map(str, numbers), "--out", str(path)]
    ended = subprocess.run([*command, *only], cwd=checkout.root(), env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    paths = {number: path if len(numbers) == 1 else path.with_stem(f"{path.stem}_{number}") for number in numbers}
    records = {number: json.loads(path.read_text(encoding="utf-8")) for number, path in paths.items()}
    for number, record in records.items():
        again = number != numbers[0]  # then only those between ranks
        wanted = {name for name in names if not again or CHECKS[name].is_between_ranks}
        assert {one["name"] for one in record["checks"]} == wanted
        for one in record["checks"]:
            expected = CHECKS[one["name"]].why_not("sim", number)
            assert (one["result"], one["why"]) == ((NOT_RUN, expected) if expected else (PROVED, "")), one
    return records


@needs_sim
@processes
@pytest.mark.proof
@pytest.mark.parametrize(
    ("numbers", "group"),
    [
        ([1], "quick"), ([2, 3], "quick"), *(([number], "lasting") for number in (1, 2, 3)), ([4], "hybrid"),
    ],
)  # fmt: skip
def test_the_proof_holds_on_the_stand_in(proof, numbers, group, bare, tmp_path):
    for ranks, record in proved(chosen(group), numbers, bare, tmp_path / "gpu.json").items():
        assert (record["ranks"], record["machine"]["device"]) == (ranks, "stand-in accelerator")
    assert all("# stand-in accelerator, " in page.read_text() for page in tmp_path.glob("*.md"))


@needs_sim
@processes
@pytest.mark.proof
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_mistake_that_only_an_accelerator_shows_is_refuted(ranks):
    """On one rank all but three, which are mistakes between ranks."""
    mutants = importlib.import_module("tests.gpu.mutants")
    found = start(mutants.everything, [("sim",)] * ranks, timeout=240)[0]
    assert list(found) == [mutant.name for mutant in mutants.tried("sim", ranks)]
    assert len(found) == len(mutants.MUTANTS) - 3 * (ranks == 1)
    assert {name for name, (result, *_) in found.items() if result != REFUTED} == set()


def test_a_check_that_ends_its_launch_is_refuted_and_the_next_launch_goes_on_behind_it(proof, monkeypatch):
    """The second of three checks hangs."""
    names, launched = [one.name for one in CHECKS.values() if one.place == "ranks" and not one.gpu_only][:3], []

    def launch(spec, report):
        *_, outcomes, _, left = json.loads(spec.variables[CHOICES])
        launched.append(left)
        done = left[:1]
        outcome = {"result": PROVED, "why": "", "figures": {}}
        with open(outcomes, "w") as file:
            ended = [(name, outcome) for name in done]
            file.writelines(json.dumps(line) + "\n" for line in [*ended, ("begun", names[1])])
        if names[1] in left:
            report("no rank made progress for 300 s")
        return importlib.import_module("dpbook.runs.launch").LaunchResult(int(names[1] in left), True)

    monkeypatch.setattr(proof, "launch", launch)
    record = proof.prove("sim", 9, names, say=lambda text: None)
    assert launched == [names, names[2:]]
    assert [one["result"] for one in record["checks"]] == [PROVED, REFUTED, PROVED]
    assert record["checks"][1]["why"] == "no rank made progress for 300 s"
    lines = proof.page(record).splitlines()
    assert lines[0].endswith("9 ranks: 1 refuted, 2 proved, 0 not run")
    assert [line for line in lines if line.startswith("## ")] == ["## Refuted", "## Proved"]


def test_a_claim_is_refuted_if_it_is_on_any_rank():
    good, bad, none = (PROVED, "", {"s": 1}), (REFUTED, "why", {}), (NOT_RUN, "no", {})
    assert all_of([good, good]) == good
    assert all_of([good, none, bad]) == (REFUTED, "rank 2: why", {})
    assert all_of([good, none]) == (NOT_RUN, "rank 1: no", {})


def test_an_unknown_check_is_refused(proof):
    with pytest.raises(DpbookError, match="no check 'speed'; there are: "):
        proof.prove("sim", 1, ["speed"])


@pytest.mark.parametrize(
    ("device", "ranks", "out", "message"),
    [
        ("sim", [1, 0], None, "--ranks 0 is not possible: it is from 1 or more"),
        ("cuda", [3], None, "--ranks 3 is not possible: it is from 1 to 2, the number of GPUs"),
        ("sim", [1], "file/gpu.json", "the record cannot be written to --out .*: Not a directory|File exists"),
    ],
)
def test_what_is_not_possible_is_refused_before_anything_is_launched(
    proof, monkeypatch, tmp_path, device, ranks, out, message
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(proof.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(proof, "prove", None)
    with pytest.raises(DpbookError, match=message):
        proof.main(device, ranks, None, out and tmp_path / out)


@pytest.mark.parametrize(("gpus", "numbers"), [(1, [1]), (2, [2]), (3, [3, 2]), (4, [4, 3, 2]), (8, [8, 4, 3, 2])])
def test_one_command_proves_with_all_gpus_and_with_fewer(proof, monkeypatch, tmp_path, gpus, numbers):
    """All checks with all GPUs, and with fewer those between ranks; one refuted check is enough for status 1."""
    tried, described = [], proof.describe("sim")

    def prove(kind, ranks, names, keep, place):
        tried.append((ranks, names))
        result = REFUTED if ranks == numbers[0] else PROVED
        check = {"name": "a", "claim": "A.", "result": result, "why": "", "figures": {}}
        return {"ranks": ranks, "date": "", "machine": described, "checks": [check]}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(proof.torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(proof, "describe", lambda kind: described)
    monkeypatch.setattr(proof, "prove", prove)
    assert proof.main("cuda", None, None, None) == 1
    assert [ranks for ranks, _ in tried] == numbers
    assert tried[0][1] is None
    assert all("equal_buckets_have_equal_bits" in names for _, names in tried[1:])
    assert not any("the_doctor_and_a_sweep_run" in names for _, names in tried[1:])
    assert len(list(tmp_path.glob("gpu_proof_stand-in-accelerator_*.json"))) == len(numbers)


def test_every_claim_is_a_sentence(proof):
    for one in CHECKS.values():
        assert one.claim.endswith("."), one.name
        assert one.place in ("ranks", "host")
