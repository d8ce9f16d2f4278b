"""Are messages between GPUs that do not arrive, or arrive wrong, told before ranks depend on them?

No machine here has two GPUs: another program stands for the one that sends.
"""

import sys
from unittest.mock import patch

import pytest
import torch

from dpbook.app import main
from dpbook.core import Gpu
from dpbook.runs.launch import peer_probe, peers
from tests.cases import each

CPU = torch.device("cpu")
HANGS = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)


def said_of(program, seconds=30.0):
    return [str(finding) for finding in peers.check_peers((sys.executable, "-c", program), seconds)]


def test_messages_that_arrive_are_not_spoken_of():
    assert said_of("print('0 1 right'); print('0 2 right'); print('1 2 right')") == []


def test_the_probe_itself_runs_where_there_is_nothing_to_send():
    assert peers.check_peers() == []


def test_wrong_bits_are_a_problem_of_their_pairs():
    (said,) = said_of("print('0 1 right'); print('0 2 wrong'); print('1 2 wrong')")
    assert said.startswith("problem: between GPUs 0–2, 1–2 other bits arrive")
    assert "ACS" in said
    assert "NCCL_P2P_DISABLE=1" in said


def test_a_message_that_never_arrives_is_a_problem_of_its_pair():
    (said,) = said_of(f"print('0 1 right'); print('0 2', end=' ', flush=True); {HANGS}", 3.0)
    assert said.startswith("problem: between GPUs 0–2 a message has not arrived within 3 s")
    assert "NCCL_P2P_DISABLE=1" in said


def test_wrong_bits_before_a_hang_are_told():
    (said,) = said_of(f"print('0 1 wrong'); print('0 2', end=' ', flush=True); {HANGS}", 3.0)
    assert said.startswith("problem: between GPUs 0–1 other bits arrive")


@each(
    ("program", "seconds", "words"),
    [
        (HANGS, 1.0, "torch was not ready within 1 s"),
        ("raise OSError('libcuda.so.1: no such file')", 30.0, "OSError: libcuda.so.1: no such file"),
        ("print('0 1', flush=True); import os; os.abort()", 30.0, "exit status -6"),
    ],
)
def test_a_probe_that_cannot_send_is_a_warning(program, seconds, words):
    (said,) = said_of(program, seconds)
    assert said.startswith("warning: messages between the GPUs")
    assert words in said


def test_nothing_is_tried_where_nccl_would_not_send(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert said_of("print('0 1 wrong')") == []


@each("lost", [None, 0, 1])
def test_each_of_the_two_messages_is_looked_at(lost):
    """Copies into memory that was just freed, which still holds the right bits, must not look right."""
    copies, copy = [], torch.Tensor.copy_

    def losing(self, other):
        copies.append(other)
        return self if len(copies) - 1 == lost else copy(self, other)

    with patch.object(torch.Tensor, "copy_", losing):
        assert peer_probe.comes_back(CPU, CPU) == (lost is None)
    assert len(copies) == 2


def launched(monkeypatch, capsys, *options):
    monkeypatch.setattr("dpbook.core.machine.gpus", lambda: [Gpu("H100", 80 * 10**9)] * 2)
    monkeypatch.setattr("dpbook.runs.launch.blind", lambda gpus: [])  # as with a torch that sees them
    monkeypatch.setattr(peers, "PROBE", (sys.executable, "-c", "print('0 1 wrong')"))
    status = main(["launch", *options, "--", __file__])
    return status, capsys.readouterr().err


def test_a_launch_over_gpus_that_cannot_reach_each_other_is_not_started(monkeypatch, capsys):
    status, said = launched(monkeypatch, capsys)
    assert status == 1
    assert "problem: between GPUs 0–1 other bits arrive" in said
    assert "not started" in said
