"""Does what chapter 14 measures count what was allocated at once?"""

import gc

from dpbook.book import ch14


def test_a_peak_is_of_what_is_alive_at_once():
    import torch

    def two_then_one():
        a, b = torch.ones(1000), torch.ones(2000)
        del a, b
        torch.ones(2500)

    torch.ones(1)  # what torch allocates once is no part of it
    assert ch14.allocated(two_then_one) == 4 * 3000
    assert ch14.allocated(lambda: None) == 0


def test_garbage_of_before_lowers_no_peak():
    import torch

    def step():
        first = torch.ones(1000)
        gc.collect()  # as Python does when it likes
        return first, torch.ones(1000)

    def waste():
        knot = [torch.ones(3000)]
        knot.append(knot)

    gc.disable()
    ch14.allocated(waste)  # the allocator tells of what it has given while it was watched
    found = ch14.allocated(step)
    gc.enable()
    assert found == 4 * 2000
