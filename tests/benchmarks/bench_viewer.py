"""What a step of the viewer costs in the kernel: drawing one state, and replaying the whole schedule once."""

import statistics
import timeit

from dpbook.collectives import ring
from dpbook.figures.schedules.frames import replay
from dpbook.figures.schedules.schedule import draw_state
from dpbook.figures.schedules.table import Table


def milliseconds(call, repeat=50):
    """The median of ``repeat`` calls."""
    return 1e3 * statistics.median(timeit.repeat(call, number=1, repeat=repeat))


def main():
    for world in (4, 8, 32):
        schedule = ring(world)
        states = replay(schedule)
        table = Table(states)
        draw_state(table, states[1])  # what never changes is drawn once
        drawing = milliseconds(lambda table=table, state=states[world // 2]: draw_state(table, state))
        replaying = milliseconds(lambda schedule=schedule: replay(schedule), repeat=5)
        print(f"ring of {world:2}: draw {drawing:6.2f} ms, replay {replaying:7.2f} ms")


if __name__ == "__main__":
    main()
