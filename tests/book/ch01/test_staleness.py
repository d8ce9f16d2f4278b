"""Does a gradient of older parameters do what theory says of it?"""

import numpy as np

from dpbook.book.ch01 import descend, draw_paths
from tests.cases import each, refuses


def largest_root(rate, delay):
    """The factor by which a step multiplies the distance in the end: the largest root of z^(d+1) − z^d + rate."""
    polynomial = np.zeros(delay + 2)
    polynomial[:2] = 1, -1
    polynomial[-1] += rate
    return max(abs(np.roots(polynomial)))


@each(("delay", "limit"), [(0, 2.0), (1, 1.0), (2, 2 * np.cos(2 * np.pi / 5)), (7, 2 * np.cos(7 * np.pi / 15))])
def test_it_shrinks_up_to_the_limit_and_no_further(delay, limit):
    assert largest_root(0.99 * limit, delay) < 1 < largest_root(1.01 * limit, delay)
    assert abs(descend(0.9 * limit, delay, 2000)[-1]) < 1e-6
    assert abs(descend(1.1 * limit, delay, 2000)[-1]) > 1e6


def test_without_delay_it_is_a_power():
    np.testing.assert_allclose(descend(0.25, 0, 5), 0.75 ** np.arange(1, 6))


def test_the_first_gradients_are_those_of_the_start():
    np.testing.assert_allclose(descend(0.5, 1, 4), [0.5, 0.0, -0.25, -0.25])


def test_the_plot_tells_where_each_path_ends():
    assert draw_paths({"fresh": descend(0.5, 0, 2)}, "Title").alt.endswith("fresh: 0.25, 0.5 at most.")


test_bad_input_is_named = refuses((lambda: draw_paths({}, "Title"), "series"))
