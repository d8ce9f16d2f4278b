"""Does a launch foresee its failures: too many ranks, no endpoint, messages between GPUs that do not arrive?

The machines of the tests do not have two GPUs: another program replaces the one that sends.
"""

import argparse
import sys
from unittest.mock import patch

import pytest
import torch

from dpbook.app import main
from dpbook.core import Gpu
from dpbook.runs.launch import preflight, preflight_checks, torch_probe
from dpbook.runs.trainer import Options, add_options, from_namespace
from tests.cases import each

CPU = torch.device("cpu")
HANGS = "import time; time.sleep(60)"
GPUS = [Gpu("H100", 80 * 10**9)] * 4


@pytest.fixture(autouse=True)
def direct_copies(monkeypatch):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)


def peer_findings(program, seconds=30.0):
    return [str(finding) for finding in preflight_checks.check_peers((sys.executable, "-c", program), seconds)]


def test_messages_that_arrive_are_no_finding():
    assert peer_findings("print('0 1 right'); print('0 2 right'); print('1 2 right')") == []


def test_the_probe_itself_runs_on_a_machine_without_peers():
    assert preflight_checks.check_peers() == []


def test_wrong_bits_are_a_problem_of_their_pairs():
    (finding,) = peer_findings("print('0 1 right'); print('0 2 wrong'); print('1 2 wrong')")
    assert finding.startswith("problem: messages between GPUs 0–2, 1–2 arrive with different bits")
    assert "ACS" in finding
    assert "NCCL_P2P_DISABLE=1" in finding


def test_a_message_that_never_arrives_is_a_problem_of_its_pair():
    (finding,) = peer_findings(f"print('0 1 right'); print('0 2', end=' ', flush=True); {HANGS}", 3.0)
    assert finding.startswith("problem: a message between GPUs 0–2 has not arrived within 3 s")
    assert "NCCL_P2P_DISABLE=1" in finding


def test_wrong_bits_before_a_hang_are_reported():
    (finding,) = peer_findings(f"print('0 1 wrong'); print('0 2', end=' ', flush=True); {HANGS}", 3.0)
    assert finding.startswith("problem: messages between GPUs 0–1 arrive with different bits")


@each(
    ("program", "seconds", "words"),
    [
        (HANGS, 1.0, "torch was not ready within 1 s"),
        ("raise OSError('libcuda.so.1: no such file')", 30.0, "OSError: libcuda.so.1: no such file"),
        ("print('0 1', flush=True); import os; os.abort()", 30.0, "exit status -6"),
    ],
)
def test_a_probe_that_cannot_send_is_a_warning(program, seconds, words):
    (finding,) = peer_findings(program, seconds)
    assert finding.startswith("warning: messages between the GPUs")
    assert words in finding


def test_nothing_is_tested_if_nccl_would_not_send(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert peer_findings("print('0 1 wrong')") == []


@each("lost", [None, 0, 1])
def test_each_of_the_two_messages_is_checked(lost):
    """Copies into memory that was just freed, which still holds the right bits, must not look right."""
    copies, copy = [], torch.Tensor.copy_

    def losing(self, other):
        copies.append(other)
        return self if len(copies) - 1 == lost else copy(self, other)

    with patch.object(torch.Tensor, "copy_", losing):
        assert torch_probe.comes_back(CPU, CPU) == (lost is None)
    assert len(copies) == 2


def launched(monkeypatch, capsys, *options):
    monkeypatch.setattr("dpbook.core.machine.gpus", lambda: [Gpu("H100", 80 * 10**9)] * 2)
    monkeypatch.setattr(
        "dpbook.runs.launch.gpus_without_torch_build", lambda gpus: []
    )  # as with a torch that sees them
    monkeypatch.setattr(preflight_checks, "PEER_PROBE", (sys.executable, "-c", "print('0 1 wrong')"))
    status = main(["launch", *options, "--", __file__])
    return status, capsys.readouterr().err


def test_a_launch_over_gpus_that_cannot_reach_each_other_is_not_started(monkeypatch, capsys):
    status, stderr = launched(monkeypatch, capsys)
    assert status == 1
    assert "problem: messages between GPUs 0–1 arrive with different bits" in stderr
    assert "not started" in stderr


def preflight_findings(*arguments, **options):
    return [str(finding) for finding in preflight(*arguments, **options)]


def test_more_ranks_than_gpus_is_a_problem_and_as_many_are_not():
    assert preflight_findings(4, gpus=GPUS) == []
    assert preflight_findings(5, gpus=GPUS)[0].startswith("problem: 5 ranks on 4 GPUs: NCCL refuses two ranks on one")
    (warning,) = preflight_findings(2, gpus=GPUS[:1], is_script=True)
    assert warning.startswith("warning: 2 ranks on 1 GPU: NCCL refuses two ranks on one")


def test_more_ranks_than_cores_is_a_warning():
    assert any(text.startswith(f"warning: {10**4} ranks share") for text in preflight_findings(10**4, gpus=[]))


@pytest.mark.parametrize("endpoint", [None, "host", "host:port", ":29500"])
def test_several_nodes_need_an_endpoint(endpoint):
    assert any(
        "need --rdzv-endpoint HOST:PORT" in text
        for text in preflight_findings(1, nnodes=2, endpoint=endpoint, gpus=GPUS)
    )


@pytest.fixture
def trained(monkeypatch):
    """The program and the options of what `dpbook launch` would train, on two GPUs of 80 GB."""
    started = []
    monkeypatch.setattr("dpbook.core.machine.gpus", lambda: [Gpu("H100", 80 * 10**9)] * 2)
    monkeypatch.setattr("dpbook.runs.launch.gpus_without_torch_build", lambda gpus: [])
    monkeypatch.setattr("dpbook.runs.launch.check_peers", list)
    monkeypatch.setattr(
        "dpbook.app.commands.launch._train",
        lambda spec, options, *_, **__: started.append((spec.program[2:], options)) or 0,
    )
    return started


@each("options", [[], ["--steps", "50", "--name", "long", "--strategy", "zero1", "--report-every", "5"]])
def test_our_program_takes_the_preset_for_gpus_where_there_are_some(options, trained, capsys):
    """The ranks are given it too, whichever machine they are on."""
    assert main(["launch", *options]) == 0
    assert trained == [(("--preset", "gpu", *options), preset_with(*options))]
    trained.clear()
    assert "there are GPUs, so --preset gpu is the default: 12 layers of width 1,024 in bf16" in capsys.readouterr().err


def preset_with(*options):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return from_namespace(parser.parse_args(["--preset", "gpu", *options]))


@each("options", [["--preset", "none"], ["--width", "64"], ["--precision", "fp32"], ["--model", "cnn"], ["--no-fused"]])
def test_an_option_of_the_size_takes_the_place_of_the_preset(options, trained, capsys):
    assert main(["launch", *options]) == 0
    ((program, chosen),) = trained
    trained.clear()
    assert program == tuple(options)
    assert chosen.depth == Options().depth
    assert "preset" not in capsys.readouterr().err


def test_a_small_gpu_trains_the_small_model(trained, monkeypatch, capsys):
    monkeypatch.setattr("dpbook.core.machine.gpus", lambda: [Gpu("GTX 1650", 4 * 10**9)])
    assert main(["launch"]) == 0
    assert trained == [(("--preset", "none"), Options())]
    assert "the GPUs have too little memory for --preset gpu" in capsys.readouterr().err


def test_without_gpus_there_is_no_preset(trained, monkeypatch, capsys):
    monkeypatch.setattr("dpbook.core.machine.gpus", list)
    assert main(["launch", "--nproc", "1"]) == 0
    assert trained == [((), Options())]
    assert "preset" not in capsys.readouterr().err
