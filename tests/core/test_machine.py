"""Are the GPUs that a process may use, and those that its torch sees, read from a fake ``nvidia-smi``?"""

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpbook.app import main
from dpbook.core import machine
from dpbook.core.machine import Gpu
from dpbook.runs.launch import gpus_without_torch_build, preflight
from dpbook.runs.trainer import Options, requirements
from tests.cases import each

SMI = """#!/bin/sh
if [ "$1" = -L ]; then /bin/cat <<'E'
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa11)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-ab22)
GPU 2: NVIDIA L4 (UUID: GPU-cc33)
GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-dd44)
  MIG 3g.20gb     Device  0: (UUID: MIG-ee55)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-ee66)
E
else /bin/cat <<'E'
GPU-aa11, NVIDIA H100 80GB HBM3, 81559
GPU-ab22, NVIDIA H100 80GB HBM3, 81559
GPU-cc33, NVIDIA L4, 23034
GPU-dd44, NVIDIA A100-SXM4-40GB, 40960
E
fi
"""
H100, L4 = Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20), Gpu("NVIDIA L4", 23034 * 2**20)
PART = Gpu("MIG 3g.20gb", 20 * 2**30)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@each(
    ("visible", "gpus"),
    [
        (None, [H100, H100, L4]),  # the A100 is in parts
        ("", []),
        ("-1", []),
        ("2", [L4]),
        ("2,0", [L4, H100]),
        ("0,-1,2", [H100]),  # what follows does not count
        ("7", []),
        ("0,0", []),  # CUDA then has none
        ("GPU-cc", [L4]),
        ("GPU-cc33,GPU-aa11", [L4, H100]),
        ("GPU-zz", []),
        ("MIG-ee55", [PART]),
        ("MIG-ee55,MIG-ee66", [PART]),  # of which a process sees one
    ],
)
def test_a_process_sees_the_gpus_that_cuda_shows_it(driver, visible, gpus):
    with pytest.MonkeyPatch.context() as patch:
        if visible is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machine.gpus() == gpus


TORCH = """from types import SimpleNamespace as Names
gpus = [Names(name="AMD Instinct MI300X", total_memory=2**30)] * 2
accelerator = Names(current_accelerator=lambda check_available: "cuda", device_count=lambda: len(gpus))
get_device_module = lambda kind: Names(get_device_properties=gpus.__getitem__)
"""


@each(
    ("driver_file", "build", "torch", "count"),
    [
        (True, "hip 7.0", TORCH, 2),
        (True, "hip 7.0", TORCH.replace("2**30)] * 2", "2**30)] * 0"), 0),
        (True, "hip 7.0", "raise ImportError", 0),
        (True, "cpu", TORCH, 0),
        (True, None, TORCH, 0),  # not installed
        (False, "hip 7.0", TORCH, 0),  # it would take seconds to find out that there is none
    ],
)
def test_without_nvidia_smi_torch_is_asked_if_there_is_a_driver(tmp_path, driver_file, build, torch, count):
    (tmp_path / "kfd").touch()
    (tmp_path / "torch.py").write_text(torch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        patch.setenv("PYTHONPATH", str(tmp_path))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # two cases have torch.py of the same size in the same second
        patch.setattr(machine, "DRIVER_FILES", [str(tmp_path / "kfd")] if driver_file else [])
        patch.setattr(machine, "torch_build", lambda: build)
        assert machine.gpus() == [Gpu("AMD Instinct MI300X", 2**30)] * count


@each(
    ("version", "build"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", "cpu"),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "cuda 13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0.1'", "hip 7.0.1"),
    ],
)
def test_for_what_torch_was_built_stands_in_its_files(tmp_path, version, build):
    (tmp_path / "torch").mkdir(exist_ok=True)
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text(version)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.delitem(sys.modules, "torch", raising=False)
        assert machine.torch_build() == build


@each(("build", "n_warnings"), [("cpu", 1), ("cuda 13.0", 0), (None, 0)])
def test_a_torch_that_sees_no_gpu_on_a_machine_that_has_some_is_reported(build, n_warnings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "torch_build", lambda: build)
        found = gpus_without_torch_build([H100] * 4)
        assert len(found) == n_warnings
        assert all("cannot use the GPUs here (4 × NVIDIA H100 80GB HBM3)" in str(finding) for finding in found)
        assert gpus_without_torch_build([]) == []


def test_a_launch_says_it_and_plans_for_the_cpu(driver, capsys):
    """The model would fit the GPUs, and not a machine of this memory."""
    driver.setattr(machine, "torch_build", lambda: "cpu")
    driver.setattr(machine, "memory", lambda: 2**30)
    assert main(["launch", "--nproc", "2", "--width", "2048"]) == 1
    printed = capsys.readouterr().err
    assert (
        "warning: torch was built for the CPU only and cannot use the GPUs here (3 × NVIDIA H100 80GB HBM3)" in printed
    )
    assert "one of 2 ranks on this machine has" in printed


def test_gpus_that_differ_are_reported_and_the_smallest_that_is_used_decides(monkeypatch):
    """The disk has room for any checkpoint."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=10**12, free=10**12))
    boxes = [H100, H100, L4]
    assert any("the GPUs differ (NVIDIA H100 80GB HBM3, NVIDIA L4)" in str(one) for one in preflight(3, gpus=boxes))
    assert not any("differ" in str(one) for one in preflight(2, gpus=boxes))
    large = Options(width=2048, depth=40)  # 32 GB
    (problem,) = requirements(large, 3, gpus=boxes)
    assert "a GPU (NVIDIA L4) has 24.2 GB" in str(problem)
    assert requirements(large, 2, gpus=boxes) == []
    assert requirements(replace(large, lora=8), 3, gpus=boxes) == []  # 8 GB: only adapters are trained
