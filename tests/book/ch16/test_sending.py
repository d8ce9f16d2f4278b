"""Is what torch's hooks are to send what one adds up by hand?"""

from dpbook.book.ch16 import SHAPES, Setting, payload, powersgd_elements, wire
from tests.cases import each, refuses

WHOLE = 128 * 64 + 128 + 128 * 128 + 128 + 10 * 128 + 10


@each(
    ("shapes", "rank", "least", "elements"),
    [
        ([(128, 64)], 2, 2, 2 * (128 + 64)),
        ([(128, 64)], 21, 2, 21 * 192),  # 21.33 is the last rank that halves it
        ([(128, 64)], 22, 2, 128 * 64),
        ([(128,)], 1, 2, 128),
        ([(2, 3)], 1, 2, 6),  # 5 are no half of 6
        ([(2, 3)], 1, 1, 5),
        ([(4, 4)], 1, 2, 16),  # nor are 8 less than half of 16
        ([(32, 16, 3, 3)], 2, 2, 2 * (32 + 144)),  # a convolution: 32 rows of 144
        ([(10, 128)], 4, 2, 4 * 138),
        ([(10, 128)], 5, 2, 1280),
        ([(10, 1000)], 99, 0.9, 10 * 1010),  # no rank above the smaller side
    ],
)
def test_a_matrix_travels_as_two_thin_ones_where_that_is_worth_it(shapes, rank, least, elements):
    assert powersgd_elements(shapes, rank, least) == elements
    assert powersgd_elements([*shapes, (7,)], rank, least) == elements + 7


@each(
    ("method", "settings", "elements"),
    [
        ("exact", {}, [WHOLE] * 7),
        ("powersgd", {"begin": 3}, [WHOLE] * 3 + [2 * (192 + 256 + 138) + 266] * 4),
        ("local", {"begin": 2, "every": 3}, [WHOLE, WHOLE, WHOLE, 0, 0, WHOLE, 0]),
        ("local", {"begin": 0, "every": 7}, [WHOLE, 0, 0, 0, 0, 0, 0]),
        ("local", {"begin": 9}, [WHOLE] * 7),
    ],
)
def test_what_is_handed_over_step_by_step(method, settings, elements):
    assert payload(Setting(method, steps=7, **settings)).tolist() == [4 * n for n in elements]


def test_halves_are_half():
    assert payload(Setting("fp16", steps=2)).tolist() == payload(Setting("bf16", steps=2)).tolist() == [2 * WHOLE] * 2


def test_a_ring_of_all_ranks():
    """6 ranks: an all-reduce sends 10 times its bytes."""
    setting = Setting("local", steps=4, begin=1, every=2)
    assert (wire(setting, 6) // (4 * WHOLE)).tolist() == [10, 10, 0, 10]
    assert (wire(Setting(steps=1), 3) // (4 * WHOLE)).tolist() == [4]
    assert sum(n for shape in SHAPES if len(shape) == 1 for n in shape) == 266


test_what_torch_would_refuse_is_refused_before = refuses(
    (lambda: Setting("fp8"), "method must be one of exact, fp16"),
    (lambda: Setting("powersgd", begin=1), "begin must be at least 2"),
    (lambda: wire(Setting("local"), 0), "world must be"),
)
