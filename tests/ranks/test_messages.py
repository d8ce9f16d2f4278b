"""Messages whose two ends disagree are refused between real processes as in one, with the same error."""

import re

import numpy as np
import pytest

from dpbook.collectives import run
from dpbook.core.errors import InvalidArgument, MessageError
from dpbook.ranks import start

DISAGREE = {
    "longer, of the same bytes": ("f4", 2, "f8", 1, "copy"),
    "shorter": ("f8", 2, "f8", 3, "copy"),
    "longer": ("f8", 3, "f8", 2, "copy"),
    "much longer": ("f8", 200_000, "f8", 2, "sum"),
    "another dtype of the same bytes": ("f4", 3, "i4", 3, "sum"),
    "another byte order": (">f4", 3, "<f4", 3, "copy"),
    "nothing into something": ("f4", 0, "f4", 2, "copy"),
    "something into nothing": ("f4", 2, "f4", 0, "copy"),
    "nothing of another dtype": ("f4", 0, "f8", 0, "copy"),
}
AGREE = {
    "numbers": ("f4", 3, "f4", 3, "sum"),
    "nothing": ("f4", 0, "f4", 0, "copy"),
    "texts": ("U5", 2, "U5", 2, "copy"),
    "dates": ("M8[s]", 2, "M8[s]", 2, "copy"),
}
CASES = DISAGREE | AGREE
NAMES = [f"{call}: {case}" for call in ("send", "sendrecv") for case in CASES]


def program(name):
    """Return a rank program that sends one message from rank 0 to rank 1, or one each way."""
    call, _, case = name.partition(": ")
    sent_dtype, sent, dtype, size, op = CASES[case]

    def message(comm, x):
        view, outgoing = np.zeros(size, dtype), np.ones(sent, sent_dtype)
        if call == "sendrecv":
            comm.sendrecv(outgoing, 1 - comm.rank, view, 1 - comm.rank, op)
        elif comm.rank == 0:
            comm.send(outgoing, 1)
        else:
            comm.recv(view, 0, op)
        if comm.rank == 1:
            assert view.tolist() == outgoing.tolist()

    return message


def without_senders_line(error):
    """Return an error without the sender's line: between processes only the receiver's is known."""
    return re.sub(r" \(line \d+ of .*?`\)(?=, but)", "", error)


def on_one_rank(rank):
    """Run every case in turn; none may disturb the next."""
    from dpbook.ranks.messages import ProcessComm

    comm, outcomes = ProcessComm(), {}
    for name in NAMES:
        try:
            program(name)(comm, None)
            outcomes[name] = "delivered"
        except MessageError as error:
            outcomes[name] = str(error)
    try:
        comm.send(np.array([{}]), 1 - rank)
    except InvalidArgument as error:
        outcomes["objects"] = str(error)
    x = np.full(5, rank + 1.0)
    comm.sendrecv(x[:3], 1 - rank, x[2:], 1 - rank, op="sum")
    return outcomes, x.tolist()


@pytest.fixture(scope="module")
def ranks():
    return start(on_one_rank, [(0,), (1,)])


def in_one_process(name):
    with pytest.raises(MessageError) as caught:
        run(program(name), np.zeros((2, 1)))
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize("case", DISAGREE)
def test_the_receiver_raises_the_error_of_a_run_in_one_process(ranks, case):
    name = f"send: {case}"
    assert ranks[0][0][name] == "delivered"
    assert ranks[1][0][name] == without_senders_line(in_one_process(name))


@pytest.mark.processes
@pytest.mark.parametrize("case", DISAGREE)
def test_both_ranks_of_an_exchange_refuse_their_message(ranks, case):
    expected = without_senders_line(in_one_process(f"sendrecv: {case}"))
    words = r"rank {} sends \d+ × \S+, but rank {} receives \d+ × \S+ \(line \d+ of message"
    for rank in (0, 1):
        assert re.match(words.format(1 - rank, rank), ranks[rank][0][f"sendrecv: {case}"])
    assert expected in (ranks[0][0][f"sendrecv: {case}"], ranks[1][0][f"sendrecv: {case}"])


@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name in NAMES if name.partition(": ")[2] in AGREE])
def test_ends_that_agree_are_delivered(ranks, name):
    run(program(name), np.zeros((2, 1)))
    assert [outcomes[name] for outcomes, _ in ranks] == ["delivered"] * 2


@pytest.mark.processes
def test_objects_are_not_sent(ranks):
    assert all(outcomes["objects"].startswith("view must be an array of plain numbers") for outcomes, _ in ranks)


@pytest.mark.processes
def test_the_ranks_stay_in_step_after_every_refusal(ranks):
    assert [x for _, x in ranks] == [[1, 1, 3, 3, 3], [2, 2, 3, 3, 3]]
