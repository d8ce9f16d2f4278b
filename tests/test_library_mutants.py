"""Do the tests of the library notice the mistakes that a tired engineer would make in it?

Each mutant is one edit of one module, in a copy of the package. The tests that it names run on that copy, and one of
them must fail. All of them must pass on the copy as it is.
"""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

from dpbook.core import checkout

pytestmark = pytest.mark.proof

ROOT = checkout.root()
FOLDERS = ("collectives", "ddp", "overlap", "replicas")


class Mutant(NamedTuple):
    """``new`` stands for ``old`` in a module of ``dpbook``; ``tests`` are the files in ``tests`` that must notice."""

    mistake: str
    module: str
    old: str
    new: str
    tests: str


CHUNKS, ROUNDS, SCHEDULE = (f"collectives/schedule/{name}.py" for name in ("chunks", "rounds", "schedule"))
INTERPRETER, SIMULATION, VERIFICATION, AGREEMENT = (
    f"collectives/algebras/{name}.py" for name in ("interpreter", "simulation", "verification", "bit_agreement")
)
RINGS, TREES = "collectives/algorithms/rings.py", "collectives/algorithms/trees.py"
COST, TOPOLOGY, FORMS, PRICES = (
    f"collectives/pricing/{name}.py" for name in ("schedule_cost", "topology", "closed_forms", "alpha_beta")
)
BUCKETS, ENGINE, REDUCER = "overlap/buckets.py", "overlap/engine.py", "ddp/reducer.py"
EXACTNESS, BOUNDS = "replicas/exactness.py", "replicas/rounding_bounds.py"
COMPRESSION, PRECISION = "replicas/inexact/compression.py", "replicas/inexact/low_precision.py"

OF_SCHEDULES = "collectives/test_schedule.py"
OF_ROUNDS = "collectives/test_rounds.py"
OF_COMPOSITION = "collectives/test_compose.py"
OF_SIMULATION = "collectives/test_simulate.py"
OF_VERIFICATION = "collectives/test_verify.py"
OF_AGREEMENT = "collectives/test_bit_agreement.py"
OF_JSON = "collectives/test_serial.py"
OF_GLOO = "collectives/test_gloo.py"
OF_ALGORITHMS = "collectives/test_algorithms.py"
OF_COSTS = "collectives/test_schedule_cost.py"
OF_TOPOLOGIES = "collectives/test_topology.py"
OF_FORMS = "collectives/test_closed_forms.py"
OF_BUCKETS = "overlap/test_buckets.py"
OF_STEPS = "overlap/test_step.py"
OF_EXACTNESS = "replicas/test_exactness.py"
OF_BOUNDS = "replicas/test_rounding.py"
OF_ROUNDED = "replicas/test_rounded.py"
OF_WRAPPERS = "ddp/test_ddp.py"
OF_COMPRESSION = "replicas/inexact/test_compression.py"
OF_PRECISION = "replicas/inexact/test_low_precision.py"

# fmt: off
MUTANTS = [
    # collectives: chunks, rounds and composition
    Mutant("the last chunks are the longer ones", CHUNKS,
           "np.minimum(index, longer)", "np.maximum(index - self.n_chunks + longer, 0)", OF_SCHEDULES),
    Mutant("a chunk of gloo is one segment", CHUNKS,
           "2 * self.n_chunks), self.n_chunks)", "self.n_chunks), self.n_chunks)", OF_GLOO),
    Mutant("a fixed chunk may not be empty", CHUNKS, "any(a > b for", "any(a >= b for", OF_SCHEDULES),
    Mutant("a rank equal to the world is legal", ROUNDS, ">= limit", "> limit", OF_ROUNDS),
    Mutant("two writes are looked for by sender", ROUNDS,
           "np.sort(self.dest * n_chunks", "np.sort(self.source * n_chunks", OF_ROUNDS),
    Mutant("a joint of two schedules belongs to the first", ROUNDS,
           "bisect_right(self._ends", "bisect_left(self._ends", OF_COMPOSITION),
    Mutant("there is a round behind the last", ROUNDS,
           "<= index < self._length", "<= index <= self._length", OF_ROUNDS),
    Mutant("a joined schedule promises what its first part does", SCHEDULE,
           "self.before, other.after, name", "self.before, self.after, name", OF_COMPOSITION),
    Mutant("an embedded schedule keeps the receivers' old ranks", SCHEDULE,
           "np.repeat(places[small.dest], copies)", "np.repeat(small.dest, copies)", OF_COMPOSITION),
    Mutant("an embedded rank speaks for itself alone", SCHEDULE,
           "frozenset().union(*(voices[w] for w in whose))", "frozenset(int(places[w]) for w in whose)",
           OF_COMPOSITION),
    Mutant("schedules side by side end with the shortest", SCHEDULE,
           "LazyRounds(max(len", "LazyRounds(min(len", OF_COMPOSITION),
    Mutant("schedules with other bounds are joined", SCHEDULE,
           '("world", "n_chunks", "bounds")', '("world", "n_chunks")', OF_SCHEDULES),
    Mutant("rounds that were read from JSON are not checked", SCHEDULE,
           "round_.check(index, schedule.world, schedule.n_chunks)", "_check_round(index, round_)", OF_JSON),
    # collectives: algebras
    Mutant("copies read what the additions of their round have written", INTERPRETER,
           "zip(parts, payloads, strict=True)", "((part, cells.read(part, round_)) for part in parts)",
           OF_SIMULATION),
    Mutant("only messages of one operation are kept from reading what they write", SIMULATION,
           "if within.reads_what_it_writes()", "if part.reads_what_it_writes()", OF_SIMULATION),
    Mutant("buffers that touch count as shared", SIMULATION, "if start < end:", "if start <= end:", OF_SIMULATION),
    Mutant("a small chunk is stored at its sender", SIMULATION,
           "self.cells[part.dest * self.n_chunks + part.chunk] = payload",
           "self.cells[part.source * self.n_chunks + part.chunk] = payload", OF_SIMULATION),
    Mutant("a double contribution is forgotten when it is passed on", VERIFICATION,
           "|= spoilt | (mine & sets)", "|= (mine & sets)", OF_VERIFICATION),
    Mutant("a double contribution that is overwritten counts", VERIFICATION,
           "self.spoilt[cell] = payload[1]", "self.spoilt[cell] |= payload[1]", OF_VERIFICATION),
    Mutant("the 65th rank has no bit", VERIFICATION,
           "-(-self.world // 64)", "max(1, self.world // 64)", OF_VERIFICATION),
    Mutant("a fault is one round early", VERIFICATION,
           "contribution in round {e.round + 1}", "contribution in round {e.round}", OF_VERIFICATION),
    Mutant("the first overwrite is blamed", VERIFICATION,
           "in reversed(ledger.overwrites)", "in ledger.overwrites", OF_VERIFICATION),
    Mutant("x + y and y + x have other bits", AGREEMENT,
           "frozenset((id(self), id(other)))", "(id(self), id(other))", OF_AGREEMENT),
    Mutant("ranks that are promised other sums are compared", AGREEMENT,
           "first.setdefault(whose, rank)", "first.setdefault(frozenset(), rank)", OF_AGREEMENT),
    # collectives: algorithms
    Mutant("the ring sends its chunks in the wrong direction", RINGS,
           "(ranks - s) % world, reduce=True", "(ranks + s) % world, reduce=True", OF_ALGORITHMS),
    Mutant("the ring's sums are promised to the next rank", RINGS,
           "after = tuple(complete_on([(chunk - 1) % world]", "after = tuple(complete_on([(chunk + 1) % world]",
           OF_ALGORITHMS),
    Mutant("gloo's ring begins with the rank's own chunk", RINGS, "(ranks + 1 + s)", "(ranks + s)", OF_GLOO),
    Mutant("rings over shared ports enter at neighbouring ranks", RINGS,
           "first = index * per_node // ports", "first = index", OF_ALGORITHMS),
    Mutant("the last worker gets no sum", TREES, "if s < world - 1", "if s <= world - 1", OF_ALGORITHMS),
    Mutant("a tree over no power of two loses a child", TREES,
           "np.arange(0, world - 2**s, ", "np.arange(0, world - 2 ** (s + 1) + 1, ", OF_ALGORITHMS),
    Mutant("a tree ignores its root", TREES, "(np.arange(world) + root) % world", "np.arange(world)", OF_ALGORITHMS),
    Mutant("halving sends the half that the rank keeps", TREES,
           "(offset + distance if reduce else offset)", "offset", OF_ALGORITHMS),
    Mutant("a folded rank sends where it should receive", TREES,
           "Round(extras - core, extras, chunks, reduce=False)", "Round(extras, extras - core, chunks, reduce=False)",
           OF_ALGORITHMS),
    Mutant("in two phases a rank sends its own chunk to every owner", TREES,
           "Round(ranks, owners, owners, reduce=True)", "Round(ranks, owners, ranks, reduce=True)", OF_ALGORITHMS),
    # collectives: prices
    Mutant("the latency is paid by every message", COST,
           "link.alpha + link.beta", "link.alpha * len(round_) + link.beta", OF_COSTS),
    Mutant("what a rank receives costs nothing", COST, "max(load[:2])", "load[0].max()", OF_COSTS),
    Mutant("what leaves a node is paid inside it too", COST, "nbytes - out, topology.world", "nbytes, topology.world",
           OF_COSTS),
    Mutant("an empty message has a header", COST, "chunk_bytes > 0 if block", "1 if block", OF_COSTS),
    Mutant("only full blocks have a header", COST,
           "-(chunk_bytes // -(itemsize", "+(chunk_bytes // +(itemsize", OF_COSTS),
    Mutant("the bus bandwidth is not divided by the world", COST,
           "return 2 * (world - 1) / world", "return 2 * (world - 1)", "collectives/test_bandwidth.py"),
    Mutant("ranks share a port with distant ones", TOPOLOGY,
           "local * self.ports // self.per_node", "local % self.ports", OF_TOPOLOGIES),
    Mutant("a gigabit is 2^30 bits", TOPOLOGY, "above=0) * 1e9 /", "above=0) * 2**30 /", OF_TOPOLOGIES),
    Mutant("lines of one slope cross", PRICES, "(b.beta - a.beta) <= 0", "(b.beta - a.beta) < 0",
           "collectives/test_alpha_beta.py"),
    Mutant("of two equal runs of a fit the first is good", PRICES, "len(run) >= best[0]", "len(run) > best[0]",
           "collectives/test_fit.py"),
    Mutant("the fewest rounds are rounded down", FORMS,
           '(check_int("world", world, 1) - 1).bit_length()\n\n\ndef bandwidth',
           'check_int("world", world, 1).bit_length() - 1\n\n\ndef bandwidth', OF_FORMS),
    Mutant("the busiest of unequal ports is taken for the average", FORMS,
           "int(np.bincount(topology.port).max())", "topology.per_node // topology.ports", OF_FORMS),
    # overlap
    Mutant("a bucket closes one tensor late", BUCKETS, "if nbytes >= limits[", "if nbytes > limits[", OF_BUCKETS),
    Mutant("the first bucket has the cap of the others", BUCKETS,
           'cap if first is None else check_int("first", first, 0)', "cap", OF_BUCKETS),
    Mutant("all dtypes share one first bucket", BUCKETS, "n_full = n_closed.get(key, 0)", "n_full = len(closed)",
           OF_BUCKETS),
    Mutant("what never closes goes out in the order of its first member", BUCKETS,
           "filling.pop(key, ([], 0))", "filling.get(key, ([], 0))", OF_BUCKETS),
    Mutant("the small bucket of the first step is launched first", BUCKETS, ", key=min, reverse=True", ", key=min",
           OF_BUCKETS),
    Mutant("gradients become ready first to last", BUCKETS, "range(count - 1, -1, -1)", "range(count)", OF_BUCKETS),
    Mutant("a bucket mixes devices", BUCKETS,
           "key = tensors[index].dtype, tensors[index].device", 'key = tensors[index].dtype, "cpu"', OF_BUCKETS),
    Mutant("an operation waits for one collective too many", ENGINE,
           "operation.needs > self.finished", "operation.needs >= self.finished", OF_STEPS),
    Mutant("computation stays slow when the wire is free", ENGINE,
           "            self.computation.rate = 1.0", "            pass", OF_STEPS),
    Mutant("collectives at once have the wire for themselves", ENGINE,
           "self.wire.rate = 1 / self.moving", "self.wire.rate = 1", OF_STEPS),
    Mutant("a collective has no latency", ENGINE, "self.real.now + call.latency", "self.real.now", OF_STEPS),
    Mutant("a collective starts with the first rank", ENGINE,
           "if len(arrived) < len(self.factors):", "if not arrived:", OF_STEPS),
    Mutant("a rank waits while its stream still carries the collective before", ENGINE,
           "max(moment, self.freed[stream])", "moment", OF_STEPS),
    Mutant("gradients are ready when their collective may start", ENGINE,
           "call.after if call.completed is None else call.completed", "call.after", OF_STEPS),
    # replicas
    Mutant("negative floats are numbered as integers", EXACTNESS,
           "np.where(bits < 0, sign_bit - bits, bits)", "bits", OF_EXACTNESS),
    Mutant("the distance in ulps has a sign", EXACTNESS,
           "np.where(x > y, x.astype(np.uint64) - y.astype(np.uint64), y.astype(np.uint64) - x.astype(np.uint64))",
           "x.astype(np.uint64) - y.astype(np.uint64)", OF_EXACTNESS),
    Mutant("one NaN is near a number", EXACTNESS, "np.isnan(a) | np.isnan(b)", "np.isnan(a) & np.isnan(b)",
           OF_EXACTNESS),
    Mutant("replicas that differ in the sign of a zero are identical", EXACTNESS,
           "(bits == bits[0])", "(stacked == stacked[0])", OF_EXACTNESS),
    Mutant("zeros of other signs have the same bits", EXACTNESS, " and (_bits(a) == _bits(b)).all()", "",
           OF_EXACTNESS),
    Mutant("an error of just the bound is no rounding", EXACTNESS, "errors <= limits", "errors < limits",
           OF_EXACTNESS),
    Mutant("the unit roundoff is the distance of two floats", BOUNDS, "(np.finfo(dtype).eps) / 2",
           "(np.finfo(dtype).eps)", OF_BOUNDS),
    Mutant("gamma is of first order only", BOUNDS, "n * unit / (1 - n * unit) if", "n * unit if", OF_BOUNDS),
    Mutant("n terms are rounded n times", BOUNDS, "n_ops = len(terms) - 1 if", "n_ops = len(terms) if", OF_BOUNDS),
    Mutant("one of two sums is taken to be exact", BOUNDS, "2 * SAFETY * growth", "SAFETY * growth", OF_BOUNDS),
    Mutant("the probable bound grows like the certain one", BOUNDS, "spread * math.sqrt(n)", "spread * n", OF_BOUNDS),
    Mutant("a sum is rounded as often as one term", BOUNDS, "self.shape[axis] - 1 + EXTRA", "EXTRA", OF_ROUNDED),
    Mutant("the error of a product's second factor is lost", BOUNDS,
           "inherited = a.error * _size(b) + _size(a) * b.error", "inherited = a.error * _size(b)", OF_ROUNDED),
    Mutant("the bound of a mean gradient is that of the sum", BOUNDS, "sums[name].ravel() / len(x)",
           "sums[name].ravel()", OF_ROUNDED),
    # ddp
    Mutant("gradients are added, not averaged", REDUCER, "1 / world", "1.0", OF_WRAPPERS),
    Mutant("a bucket that is filled in two parts is scaled twice", REDUCER,
           "whole = len(views) == len(bucket.members)", "whole = True", OF_WRAPPERS),
    Mutant("a missing gradient sends what its buffer held", REDUCER, "view.zero_()", "pass", OF_WRAPPERS),
    Mutant("nobody waits for a bucket", REDUCER, "bucket.handle.wait()", "pass", OF_WRAPPERS),
    Mutant("an unused parameter is not marked", REDUCER, "used[torch.tensor(unused, device=device)] = 0", "pass",
           OF_WRAPPERS),
    Mutant("the gradient that is kept is overwritten", REDUCER, "else gradient.clone()", "else gradient", OF_WRAPPERS),
    Mutant("every element has four bytes", REDUCER, "bucket.buffer.element_size()", "4", OF_WRAPPERS),
    Mutant("buckets are sent at the end of backward", REDUCER, "if self.overlap and not bucket.missing",
           "if False and not bucket.missing", OF_WRAPPERS),
    # replicas: inexact methods
    Mutant("an owner forgets what it has not sent", COMPRESSION,
           "average + residual for average", "average + 0 * residual for average", OF_COMPRESSION),
    Mutant("an owner keeps what it has sent", COMPRESSION,
           "a - self._decode(payload, a) for a", "self._decode(payload, a) for a", OF_COMPRESSION),
    Mutant("all blocks of a message share a scale", PRECISION,
           "if self.scaled and self.block is not None:", "if False:", OF_PRECISION),
]
# fmt: on


class Package:
    """A copy of the package and its tests."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("dpbook", *(f"tests/{name}" for name in FOLDERS)):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("pyproject.toml", "tests/conftest.py", "tests/cases.py"):
            shutil.copy2(ROOT / name, folder / name)

    def test(self, *files):
        """Run test files to the first failure, and return the process."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=300", *files]
        # Compiled modules are told from their source by the second and the size: an edit may change neither.
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=self.folder / "tests", env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return Package(tmp_path_factory.mktemp("package"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mistake)
def test_a_mistake_is_noticed(package, mutant):
    path = package.folder / "dpbook" / mutant.module
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"stale: {mutant.old!r} must occur once in dpbook/{mutant.module}"
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        run = package.test(mutant.tests)
    finally:
        path.write_text(text)
    # Where a test module builds what is now wrong, the run is interrupted while it collects.
    assert run.returncode in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED), run.stdout + run.stderr


def test_without_a_mistake_the_same_tests_pass(package):
    run = package.test(*sorted({mutant.tests for mutant in MUTANTS}))
    assert run.returncode == pytest.ExitCode.OK, run.stdout + run.stderr
