"""Random rank programs, and the schedules that do the same."""

from hypothesis import strategies as st

from dpbook.collectives import Round, Schedule


@st.composite
def exchanges(draw, max_world=5, max_steps=5):
    """A world, a size, and steps in each of which a rank sends at most one slice and receives at most one.

    A step maps a sender to (receiver, begin, end, op).
    """
    world, size = draw(st.integers(2, max_world)), draw(st.integers(1, 4))
    steps = []
    for _ in range(draw(st.integers(0, max_steps))):
        receivers = draw(st.permutations(range(world)))
        step = {}
        for sender in range(world):
            if receivers[sender] != sender and draw(st.booleans()):
                begin, end = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
                step[sender] = (receivers[sender], begin, end, draw(st.sampled_from(["sum", "copy"])))
        steps.append(step)
    return world, size, steps


def as_program(steps):
    """The rank program that carries the steps out."""

    def program(comm, x):
        for step in steps:
            out = step.get(comm.rank)
            source, into = next(((s, m) for s, m in step.items() if m[0] == comm.rank), (None, None))
            if out and into:
                comm.sendrecv(x[out[1] : out[2]], out[0], x[into[1] : into[2]], source, op=into[3])
            elif out:
                comm.send(x[out[1] : out[2]], out[0])
            elif into:
                comm.recv(x[into[1] : into[2]], source, op=into[3])

    return program


def as_schedule(world, size, steps):
    """The schedule that carries the steps out: one round per step, one chunk per element."""
    rounds = [
        Round.from_messages(
            [
                (sender, dest, element, op == "sum")
                for sender, (dest, begin, end, op) in step.items()
                for element in range(begin, end)
            ]
        )
        for step in steps
    ]
    return Schedule(world, size, rounds)
