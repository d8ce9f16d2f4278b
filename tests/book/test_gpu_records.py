"""Do pages say of GPUs what the records say, and nothing where there is none?"""

import importlib
import json
import re
from collections import Counter

import pytest

from dpbook.book.gpu_records import NOT_YET, measured_on_gpus, read_gpu_records
from dpbook.core import InvalidArgument, checkout
from tests.gpu.checks import CHECKS

README = (checkout.root() / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def proof():
    return importlib.import_module("tests.gpu.proof")


def record(result="proved", why="", **figures):
    checks = [{"name": "waits", "claim": "The host waits.", "result": result, "why": why, "figures": figures}]
    return {"machine": {"device": "NVIDIA H100", "versions": {}, "dpbook": "1"}, "ranks": 2, "date": "2026-01-02",
            "checks": checks}  # fmt: skip


def test_a_chapter_says_what_was_found_on_each_machine(proof, tmp_path):
    proof.write(record(seconds=0.25, bytes=[1, 2]), tmp_path / "gpu_proof_a.json")
    later = record("refuted", "it did not")
    later["checks"][0]["since"] = "mended"
    proof.write(later, tmp_path / "gpu_proof_b.json")
    assert measured_on_gpus("waits", folder=tmp_path).splitlines() == [
        "The host waits.",
        "  NVIDIA H100, 2 ranks, 2026-01-02: proved (seconds: 0.25; bytes: [1, 2])",
        "  NVIDIA H100, 2 ranks, 2026-01-02: refuted (it did not; mended)",
    ]
    assert read_gpu_records(tmp_path)[0].checks["waits"]["result"] == "proved"
    with pytest.raises(InvalidArgument, match="name must be a check of the proof for GPUs"):
        measured_on_gpus("sleeps", folder=tmp_path)


def test_without_a_record_a_chapter_says_so(tmp_path):
    assert measured_on_gpus("waits", folder=tmp_path) == NOT_YET


def test_the_readmes_table_names_the_machines_of_the_records():
    (row,) = re.findall(r"^\| GPUs, NCCL.*$", README, re.MULTILINE)
    records = read_gpu_records()
    assert all(record.device in row for record in records)
    for record in records:
        counts = Counter(check["result"] for check in record.checks.values())
        assert all(f"{number} {result}" in row for result, number in counts.items())


def test_chapters_ask_for_checks_that_there_are(proof):
    """Without a record nothing else would notice a name that is wrong."""
    asked = {}
    for path in (checkout.root() / "chapters").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for call in re.findall(r"measured_on_gpus\(([^)]*)\)", "".join(cell["source"])):
                asked.setdefault(path.name[:3].rstrip("_"), []).extend(re.findall(r'"(\w+)"', call))
    assert sorted(asked) == ["10", "12", "12b", "14"]
    assert {name for names in asked.values() for name in names} <= set(CHECKS)
