"""Do arrays, values as JSON, and nothing else pass between a judge and an answer's process?"""

import json
import socket
import struct
import threading

import numpy as np
import pytest

from dpbook.classroom.sandbox.encoding import BadFrame, Ended, Frames, SharedArrays, read, write
from dpbook.classroom.tasks.plain_data import NotPlain, difference
from dpbook.collectives import Schedule, ring, to_json
from tests.cases import each


def pass_on(sender, receiver):
    head, data = sender.outgoing()
    receiver.incoming(json.loads(json.dumps(head)), memoryview(b"".join(data)))


def sides():
    return SharedArrays(0), SharedArrays(1, weak=True)


def given(judge, answer, array):
    """``array`` of the judge's as the answer gets it."""
    reference = json.loads(json.dumps(judge.reference(array)))
    pass_on(judge, answer)
    return answer.resolve(reference)


@each(
    "array",
    [
        np.arange(6.0),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.arange(6.0)[::-1],
        np.empty((0, 3)),
        np.array(2.5),
        np.array([True, False]),
        np.float16([1, np.nan]),
    ],
)
def test_an_array_arrives_as_it_is(array):
    got = given(*sides(), array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert np.array_equal(got, array, equal_nan=array.dtype.kind == "f")


def test_what_one_side_writes_the_other_reads():
    judge, answer = sides()
    mine = np.arange(6.0)
    theirs = given(judge, answer, mine)
    theirs[2:4] = -1
    pass_on(answer, judge)
    assert mine.tolist() == [0, 1, -1, -1, 4, 5]
    mine[0] = 7
    pass_on(judge, answer)
    assert theirs[0] == 7
    assert judge.outgoing() == ([], [])


@each("cut", [np.s_[1:3], np.s_[::2], np.s_[::-1], np.s_[:0]])
def test_a_slice_of_the_answers_lies_in_the_judges_array(cut):
    judge, answer = sides()
    mine = np.arange(6.0)
    theirs = given(judge, answer, mine)
    found = judge.resolve(answer.reference(theirs[cut]))
    assert found.tolist() == mine[cut].tolist()
    found[:] = 9
    assert mine[cut].tolist() == found.tolist()
    assert np.shares_memory(found, mine) == (found.size > 0)


def test_an_array_of_the_answers_is_filled_by_the_judge():
    judge, answer = sides()
    buffer = np.zeros((2, 4))
    reference = answer.reference(buffer[1, 1:3])
    pass_on(answer, judge)
    judge.resolve(reference)[:] = 5
    pass_on(judge, answer)
    assert buffer.tolist() == [[0, 0, 0, 0], [0, 5, 5, 0]]


def test_no_more_of_the_judges_memory_is_shown_than_it_gives():
    judge, _ = sides()
    secret = np.arange(100.0)
    judge.reference(secret[10:12])
    (head, data) = judge.outgoing()
    assert [length for _, length in head] == [16]
    assert np.frombuffer(data[0]).tolist() == [10, 11]


def test_an_array_that_is_given_again_after_it_was_dropped_arrives_again():
    judge, answer = sides()
    mine = np.arange(3.0)
    got = given(judge, answer, mine)
    pass_on(answer, judge)
    del got
    pass_on(answer, judge)  # by now it is gone there
    pass_on(answer, judge)
    assert given(judge, answer, mine).tolist() == [0, 1, 2]


@each(
    "reference",
    [
        None, [], [7, "<f8", 0, [3], [8]], [0, "<f8", 0, [4], [8]], [0, "<f8", 8, [3], [8]], [0, "<f8", -8, [3], [8]],
        [0, "<f8", 0, [3], [-8]], [0, "O", 0, [3], [8]], [0, "<M8[s]", 0, [3], [8]], [0, "nonsense", 0, [3], [8]],
        [0, "<f8", 0, [2**70], [8]], [0, "<f8", 0, [-1], [8]], ["x", "<f8", 0, [3], [8]], [0, "<f8", 0, [3], [2**62]],
    ],
)  # fmt: skip
def test_a_reference_that_is_none_is_refused(reference):
    judge, answer = sides()
    given(judge, answer, np.arange(3.0))
    with pytest.raises(ValueError, match="array"):
        judge.resolve(reference)


@each("head", [None, [[0]], [[0, 7]], [["0", 24]], [[0, 25]], [[2, 8]], [[0, -2]], [[1, 10**9]]])
def test_bytes_of_no_array_are_refused(head):
    judge, answer = sides()
    given(judge, answer, np.arange(3.0))
    with pytest.raises(ValueError, match="array"):
        judge.incoming(head, memoryview(bytes(24)))


def named(value):
    raise NotPlain("something else")


VALUES = (
    None, True, 0, -(2**70), 1.5, float("inf"), 2j, "ü\ud800", b"\x00", ..., [1, [2]], (1, (2,)),
    {1: "a", (1, 2): [None]}, {1, 2}, frozenset({3}), {}, {"tuple": [1]}, np.arange(3), [np.ones((2, 2))],
    np.float64(2.0), ring(3),
)  # fmt: skip


@each("value", VALUES)
def test_plain_values_are_what_they_were(value):
    judge, answer = sides()
    written = json.loads(json.dumps(write(value, answer, named)))
    pass_on(answer, judge)
    got = read(written, judge, named)
    expected = 2.0 if isinstance(value, np.float64) else value
    assert type(got) is type(expected)
    if isinstance(value, Schedule):
        assert to_json(got) == to_json(expected)
    else:
        assert difference(expected, got) is None


def test_a_number_that_is_none_stays_none():
    judge, answer = sides()
    assert np.isnan(read(json.loads(json.dumps(write(float("nan"), answer, named))), judge, named))


@each("value", [object(), print, [object()], iter([])])
def test_what_is_no_data_is_named_or_refused(value):
    with pytest.raises(NotPlain):
        write(value, SharedArrays(1), named)


def refused(name):
    raise ValueError


@each(
    "written",
    [
        {}, {"int": "zz"}, {"int": 5}, {"complex": [1]}, {"bytes": "0"}, {"schedule": "[]"}, {"schedule": 1},
        {"dict": [[1]]}, {"dict": [[{"dict": []}, 1]]}, {"set": [[1]]}, {"array": [0, "<f8", 0, [1], [8]]},
        {"live": [1]}, {"a": 1, "b": 2}, json.loads("[" * 25 + "]" * 25),
    ],
)  # fmt: skip
def test_what_stands_for_no_value_is_refused(written):
    with pytest.raises(ValueError, match="does not encode a value"):
        read(written, SharedArrays(0), refused)


def test_keys_of_one_hash_and_views_of_few_bytes_are_refused_when_they_are_many():
    """Either would keep who judges busy, or fill its memory, and costs the answer a few bytes."""
    judge, answer = sides()
    pass_on(answer, judge)
    held = np.zeros(2)
    number = answer.reference(held)[0]
    pass_on(answer, judge)
    wide = {"array": [number, "<f8", 0, [2**24], [0]]}
    assert read([wide], judge, lambda name: None)[0].nbytes == 2**27
    for many in ({"set": list(range(5000))}, {"dict": [[k, 0] for k in range(5000)]}, [wide] * 8):
        with pytest.raises(ValueError, match="does not encode a value"):
            read(many, judge, lambda name: None)


def test_frames_arrive_whole_whatever_their_size():
    ours, theirs = (Frames(sock) for sock in socket.socketpair())
    sent = [(b"{}", b""), (b"x" * 10**5, b"y" * 10**6), (b"", b"z")]
    thread = threading.Thread(target=lambda: [ours.send(text, [data]) for text, data in sent] and ours.close())
    thread.start()
    assert [(text, bytes(data)) for text, data in (theirs.receive() for _ in sent)] == sent
    thread.join()
    with pytest.raises(Ended):
        theirs.receive()


def test_who_waits_is_asked_to_look_until_a_frame_comes():
    ours, theirs = socket.socketpair()
    looks = []

    def look():
        looks.append(len(looks))
        if len(looks) % 3 == 0:
            Frames(ours).send(b"{}")

    waiting = Frames(theirs, look, 0.001)
    waiting.receive()
    waiting.receive()
    assert looks == [0, 1, 2, 3, 4, 5]


def test_a_frame_that_is_too_large_is_refused_before_it_is_read():
    ours, theirs = socket.socketpair()
    ours.send(struct.pack("<II", 2**31, 0))
    with pytest.raises(BadFrame):
        Frames(theirs).receive()
