"""Do real processes return the bits that were predicted in one process? One start per world, many checks in each."""

import functools

import numpy as np
import pytest

from dpbook import collectives
from dpbook.collectives import Round, Schedule, beside, embed, hierarchical_ring, ring, simulate, tree
from dpbook.collectives.algebras.interpreter import interpret
from dpbook.ranks import run, start
from tests.collectives.oracles import plain
from tests.collectives.programs import PROGRAMS

pytestmark = pytest.mark.processes
WORLDS = [*(pytest.param(world, marks=pytest.mark.proof) for world in (2, 3)), 5]


@functools.cache
def noise(world, size, dtype):
    """Return buffers whose sums round (or overflow), so that every order of summation has its own bits.

    Every schedule begins with the same buffers, which are drawn once in each process and are read-only.
    """
    rng, dtype = np.random.default_rng([world, size]), np.dtype(dtype)
    if dtype.kind in "fc":
        drawn = (rng.standard_normal((world, size)) + (1j if dtype.kind == "c" else 0)).astype(dtype)
    else:
        drawn = rng.integers(0, 200, (world, size)).astype(dtype)
    drawn.setflags(write=False)
    return drawn


def jumble(seed, world, n_chunks=3, rounds=6):
    """Return a schedule of random legal rounds: additions, replacements, exchanges, several messages at once."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(rounds):
        cells = rng.permutation(world * n_chunks)[: rng.integers(1, world * n_chunks + 1)]
        dest, chunk = np.divmod(cells, n_chunks)
        source = (dest + rng.integers(1, world, len(cells))) % world
        made.append(Round.of(source, dest, chunk, rng.random(len(cells)) < 0.5))
    return Schedule(world, n_chunks, made, name=f"jumble {seed}")


def schedules(world):
    made = [make(world) for make in collectives.ALGORITHMS.values()]
    made += [collectives.reduce_scatter(world), collectives.reduce(world, world - 1), collectives.broadcast(world, 1)]
    if world == 5:
        made += [embed(hierarchical_ring(2, 2), 5, [4, 0, 3, 1])]
        made += [beside(embed(ring(2), 5, [4, 1]), embed(tree(3), 5, [0, 2, 3], 2, [[0, 1]])).named("ring beside tree")]
    return made


def schedule_cases(world):
    """Return (schedule, size, dtype): every schedule in both precisions at all sizes, and in the other dtypes."""
    sizes = [1, world - 1, world, 2 * world + 1, 1001, 70_001]
    cases = [(s, size, dtype) for s in schedules(world) for size in sizes for dtype in ("f4", "f8")]
    cases += [(s, 1001, dtype) for s in schedules(world)[:3] for dtype in ("f2", "i4", "i8", "u1", "c8", "c16", "?")]
    if world == 2:  # messages of several segments
        cases += [(schedule, 2_500_001, "f4") for schedule in (ring(2), tree(2))]
    return cases + [(jumble(seed, world), 100, "f4") for seed in range(20)]


def program_cases(world):
    sizes = [1, world - 1, 2 * world + 1, 1001]
    cases = [(name, size, dtype) for name in PROGRAMS for size in sizes for dtype in ("f4", "f8")]
    return cases + [(name, 1001, dtype) for name in PROGRAMS for dtype in ("f2", "i4", "u1", "c8", "c16", "?")]


def on_one_rank(rank, world, schedules, programs, data):
    """Return the results of all schedules and programs on this rank, and the errors of calls that are refused."""
    import torch

    from dpbook.ranks.messages import ProcessComm, _Batched, execute

    def batched(schedule, x):
        """Send messages together, as on GPUs, but over gloo."""
        for _ in interpret(schedule, _Batched(schedule, torch.from_numpy(x))):
            pass

    def result(run, size, dtype):
        x = data(world, size, dtype)[rank].copy()
        run(x)
        return x.tobytes()

    def refusal(call):
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "accepted"

    tensor = torch.arange(7, dtype=torch.float32) * (rank + 1)
    execute(schedules[0][0], tensor)
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    comm = ProcessComm()
    return {
        "schedules": [result(lambda x, s=s: execute(s, x), size, dtype) for s, size, dtype in schedules],
        "batched": [result(lambda x, s=s: batched(s, x), size, dtype) for s, size, dtype in schedules[::3]],
        "programs": [result(lambda x, p=p: p(comm, x), size, dtype) for p, size, dtype in programs],
        "tensor": tensor.tolist(),
        "rank and world": (comm.rank, comm.world_size),
        "refused": {
            "another world": refusal(lambda: execute(ring(world + 1), np.zeros(4))),
            "two dimensions": refusal(lambda: execute(ring(world), np.zeros((2, 2)))),
            "strided array": refusal(lambda: execute(ring(world), np.zeros(8)[::2])),
            "reversed array": refusal(lambda: execute(ring(world), np.zeros(8)[::-1])),
            "strided tensor": refusal(lambda: execute(ring(world), torch.zeros(8)[::2])),
            "read-only array": refusal(lambda: execute(ring(world), frozen)),
            "illegal round": refusal(lambda: execute(Schedule(world, 1, [Round.of(0, 0, 0, True)]), np.zeros(4))),
            "message to itself": refusal(lambda: comm.send(np.zeros(1), rank)),
            "unknown operation": refusal(lambda: comm.recv(np.zeros(1), (rank + 1) % world, op="mean")),
        },
    }


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request):
    world = request.param
    programs = [(PROGRAMS[name], size, dtype) for name, size, dtype in program_cases(world)]
    return start(on_one_rank, [(rank, world, schedule_cases(world), programs, noise) for rank in range(world)])


def test_schedules_end_with_the_bits_of_the_simulation(ranks):
    world = len(ranks)
    for index, (schedule, size, dtype) in enumerate(schedule_cases(world)):
        expected = simulate(schedule, noise(world, size, dtype)).buffers
        assert b"".join(rank["schedules"][index] for rank in ranks) == expected.tobytes(), (schedule, size, dtype)


def test_messages_submitted_together_as_for_nccl_return_the_same_bits(ranks):
    assert all(rank["batched"] == rank["schedules"][::3] for rank in ranks)


def test_schedules_end_with_the_bits_of_the_oracle(ranks):
    world = len(ranks)
    for index, (schedule, size, dtype) in enumerate(schedule_cases(world)):
        expected = plain(schedule, noise(world, size, dtype))
        assert b"".join(rank["schedules"][index] for rank in ranks) == expected.tobytes(), (schedule, size, dtype)


def test_programs_end_with_the_bits_of_the_run_in_one_process(ranks):
    world = len(ranks)
    for index, (name, size, dtype) in enumerate(program_cases(world)):
        expected = collectives.run(PROGRAMS[name], noise(world, size, dtype))
        assert b"".join(rank["programs"][index] for rank in ranks) == np.stack(expected).tobytes(), (name, size, dtype)


def test_a_schedule_takes_tensors(ranks):
    world = len(ranks)
    assert [rank["tensor"] for rank in ranks] == [[i * world * (world + 1) / 2 for i in range(7)]] * world


def test_every_rank_knows_itself_and_its_world(ranks):
    assert [rank["rank and world"] for rank in ranks] == [(r, len(ranks)) for r in range(len(ranks))]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("another world", "InvalidArgument: schedule must be for the world of this process group"),
        ("two dimensions", "InvalidArgument: buffer must be 1-D"),
        ("strided array", "InvalidArgument: buffer must be writable and contiguous"),
        ("reversed array", "InvalidArgument: buffer must be writable and contiguous"),
        ("strided tensor", "InvalidArgument: buffer must be 1-D and contiguous"),
        ("read-only array", "InvalidArgument: buffer must be writable and contiguous"),
        ("illegal round", "ScheduleError: round 1: rank 0 sends a message to itself"),
        ("message to itself", "InvalidArgument: to on rank"),
        ("unknown operation", "InvalidArgument: op must be 'copy' or 'sum'"),
    ],
)
def test_a_call_that_cannot_be_carried_out_is_refused_on_every_rank(ranks, case, message):
    assert all(rank["refused"][case].startswith(message) for rank in ranks), ranks[0]["refused"][case]


@pytest.mark.parametrize("program", [PROGRAMS["ring"], ring(2)], ids=["a rank program", "a schedule"])
def test_run_is_the_same_call_as_in_one_process(program):
    buffers = noise(2, 50, "f4")
    before = buffers.copy()
    result = run(program, buffers)
    assert np.stack(result).tobytes() == simulate(ring(2), buffers).buffers.tobytes()
    assert buffers.tobytes() == before.tobytes()
