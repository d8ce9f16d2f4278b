"""Questions for an oral exam, with numbers drawn from a seed, and their answers.

python -m tests.classroom.oral 7          # six questions
python -m tests.classroom.oral 7 --all    # all of them

It lies beside the page of tasks, because only a checkout has `docs/teaching/`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Drawn = tuple[str, str]


@dataclass(frozen=True)
class Question:
    """A question of a chapter. ``draw`` gives its text and its answer; ``then`` is asked back, whatever the answer."""

    chapter: int
    draw: Callable[[np.random.Generator], Drawn]
    then: str


def _padded(rng: np.random.Generator) -> Drawn:
    world, examples = int(rng.integers(3, 9)), int(rng.integers(50, 400))
    share = -(-examples // world)
    asked = f"{examples} examples, {world} ranks, padding: how many does a rank read? How many are read twice?"
    return asked, f"{share} each; {share * world - examples} read twice"


def _weighted(rng: np.random.Generator) -> Drawn:
    short, long = int(rng.integers(1, 10)) * 10, int(rng.integers(20, 60)) * 10
    low, high = int(rng.integers(1, 4)), int(rng.integers(5, 9))
    right, mean = (short * low + long * high) / (short + long), (low + high) / 2
    asked = (
        f"Two ranks have {short} and {long} tokens and mean losses of {low} and {high}. "
        "What does an average of the two say, and what is the mean over all tokens?"
    )
    return asked, f"{mean:.2f}, and {right:.2f}"


def _leftover(rng: np.random.Generator) -> Drawn:
    accumulation, left = int(rng.integers(4, 9)), int(rng.integers(1, 4))
    asked = (
        f"Accumulation {accumulation}; at the end of the epoch {left} micro-batch(es) remain. The loop updates with "
        f"them, dividing by {accumulation} as ever. How large is that gradient, compared with their mean?"
    )
    return asked, f"{left}/{accumulation} = {left / accumulation:.2f} of it"


def _ring(rng: np.random.Generator) -> Drawn:
    world, megabytes = int(rng.integers(3, 17)), int(rng.integers(1, 21)) * 12
    sent = 2 * (world - 1) / world * megabytes
    asked = f"A ring all-reduce of {megabytes} MB over {world} ranks: how many rounds, and how many MB sent by a rank?"
    return asked, f"{2 * (world - 1)} rounds, {sent:.1f} MB"


def _price(rng: np.random.Generator) -> Drawn:
    world, alpha, rate, megabytes = 8, int(rng.integers(5, 50)), int(rng.integers(5, 50)), int(rng.integers(1, 200))
    microseconds = 14 * alpha + 14 / 8 * megabytes / rate * 1e3
    asked = f"A ring over {world} ranks, {megabytes} MB, {alpha} µs of latency, {rate} GB/s: how long is an all-reduce?"
    return asked, f"{microseconds:,.0f} µs, of which {14 * alpha} are latency"


def _busbw(rng: np.random.Generator) -> Drawn:
    world, algbw = int(rng.choice([4, 8, 16])), int(rng.integers(20, 300))
    asked = (
        f"nccl-tests prints an algbw of {algbw} GB/s for an all-reduce over {world} ranks. "
        "What is the busbw, and what would it be for an all-gather?"
    )
    return asked, f"{2 * (world - 1) / world * algbw:.0f} and {(world - 1) / world * algbw:.0f} GB/s"


def _exposed(rng: np.random.Generator) -> Drawn:
    backward, sync = int(rng.integers(40, 90)), int(rng.integers(20, 120))
    first = int(rng.integers(5, 15))
    exposed = max(sync - (backward - first), 0)
    asked = (
        f"Backward takes {backward} ms, the first gradient is ready after {first} ms, all-reduces take {sync} ms in "
        "all, one after another. Which part of them is exposed at least?"
    )
    return asked, f"{exposed} ms"


def _memory(rng: np.random.Generator) -> Drawn:
    billions, world = int(rng.integers(1, 14)), int(rng.choice([8, 16, 64]))
    whole, sharded = 16 * billions, 16 * billions / world
    asked = (
        f"{billions} billion parameters, AdamW, 16 bytes per parameter without activations, {world} GPUs: how many "
        "GB does a GPU hold under plain data parallelism, and with everything sharded?"
    )
    return asked, f"{whole} GB, and {sharded:.2f} GB"


def _resharded(rng: np.random.Generator) -> Drawn:
    rows, world = int(rng.integers(9, 30)), int(rng.integers(4, 8))
    chunk = -(-rows // world)
    held = [max(min(chunk, rows - rank * chunk), 0) for rank in range(world)]
    return f"{rows} rows are cut into chunks of ⌈rows / ranks⌉ for {world} ranks. Who has how many?", f"{held}"


def _mfu(rng: np.random.Generator) -> Drawn:
    billions, tokens, peak = int(rng.integers(1, 14)), int(rng.integers(2, 12)) * 1000, 989
    share = 6 * billions * 1e9 * tokens / (peak * 1e12)
    asked = f"{billions} billion parameters, {tokens:,} tokens/s per GPU, a peak of {peak} TFLOP/s: what is the MFU?"
    return asked, f"{share:.0%}, without attention" + (", so one of the numbers is wrong" if share > 1 else "")


QUESTIONS = (
    Question(2, _weighted, "Which exchange makes it right? What does a rank without tokens do?"),
    Question(3, _padded, "Which examples are they? And what would dropping do?"),
    Question(4, _leftover, "What does AdamW make of it? And clipping?"),
    Question(5, _ring, "Which rank holds which chunk half-way? Why can no schedule send less?"),
    Question(6, _price, "From which size on is the tree slower? How would you measure the two constants?"),
    Question(7, _exposed, "Name two reasons for which a trace shows more."),
    Question(12, _busbw, "What would a busbw above the link's rate tell you?"),
    Question(12, _mfu, "Does recomputation raise it?"),
    Question(13, _memory, "What does the second case send more?"),
    Question(14, _resharded, "What else must be cut the same way? What must not be cut?"),
)


def drawn(seed: int, number: int) -> list[tuple[Question, str, str]]:
    """Return so many different questions in the order of their chapters, with text and answer.

    The same seed gives the same numbers.
    """
    rng = np.random.default_rng(seed)
    chosen = sorted(rng.choice(len(QUESTIONS), number, replace=False).tolist())
    return [(QUESTIONS[k], *QUESTIONS[k].draw(np.random.default_rng([seed, k]))) for k in chosen]


def sheet(seed: int, number: int) -> str:
    """Return the questions as Markdown, each with its answer and what to ask back."""
    lines = [f"# Oral exam, seed {seed}"]
    for place, (question, text, answer) in enumerate(drawn(seed, number), 1):
        lines += ["", f"{place}. (chapter {question.chapter:02}) {text}", f"   *{answer}.* Then: {question.then}"]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    print(sheet(options.seed, len(QUESTIONS) if options.all else 6))
