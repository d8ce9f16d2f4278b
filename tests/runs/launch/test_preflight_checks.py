"""Does a launch foresee its failures: too many ranks, no endpoint, messages between GPUs that do not arrive?

The machines of the tests do not have two GPUs: another program replaces the one that sends.
"""

import sys
from unittest.mock import patch

import pytest
import torch

from dpbook.app import main
from dpbook.core import Gpu
from dpbook.runs.launch import preflight, preflight_checks, torch_probe
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
    assert finding.startswith("problem: messages between GPUs 0–2, 1–2 arrive with other bits")
    assert "ACS" in finding
    assert "NCCL_P2P_DISABLE=1" in finding


def test_a_message_that_never_arrives_is_a_problem_of_its_pair():
    (finding,) = peer_findings(f"print('0 1 right'); print('0 2', end=' ', flush=True); {HANGS}", 3.0)
    assert finding.startswith("problem: a message between GPUs 0–2 has not arrived within 3 s")
    assert "NCCL_P2P_DISABLE=1" in finding


def test_wrong_bits_before_a_hang_are_reported():
    (finding,) = peer_findings(f"print('0 1 wrong'); print('0 2', end=' ', flush=True); {HANGS}", 3.0)
    assert finding.startswith("problem: messages between GPUs 0–1 arrive with other bits")


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
    assert "problem: messages between GPUs 0–1 arrive with other bits" in stderr
    assert "not started" in stderr


def preflight_findings(*arguments, **options):
    return [str(finding) for finding in preflight(*arguments, **options)]


def test_more_ranks_than_gpus_is_a_problem_and_as_many_are_not():
    assert preflight_findings(4, gpus=GPUS) == []
    assert preflight_findings(5, gpus=GPUS)[0].startswith("problem: 5 ranks on 4 GPUs: NCCL refuses two ranks on one")


def test_more_ranks_than_cores_is_a_warning():
    assert any(text.startswith(f"warning: {10**4} ranks share") for text in preflight_findings(10**4, gpus=[]))


@pytest.mark.parametrize("endpoint", [None, "host", "host:port", ":29500"])
def test_several_nodes_need_an_endpoint(endpoint):
    assert any(
        "need --rdzv-endpoint HOST:PORT" in text
        for text in preflight_findings(1, nnodes=2, endpoint=endpoint, gpus=GPUS)
    )
