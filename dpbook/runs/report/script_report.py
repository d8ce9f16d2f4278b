"""Report of any script: a page and a JSON in a new folder, and the lines that a launch prints at its end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpbook.collectives import AlphaBeta
from dpbook.core import InvalidArgument, machine, milliseconds, plural
from dpbook.overlap import Timeline
from dpbook.runs.forecast import ForecastRow, MeasuredStep, bucket_limits, fitted_connection, forecast, simulate_buckets
from dpbook.runs.launch import Launch, launch, new_folder
from dpbook.runs.report import verdicts
from dpbook.runs.report.advice import LEAST_GAIN, Advice, advise
from dpbook.runs.report.measured_run import MeasuredRun, NotMeasured, read_run
from dpbook.runs.trainer import ALONE
from dpbook.runs.watching import PARTS, with_hooks

FORMAT = 1
REPORTS = Path("runs", "reports")
"""Folder of reports, in the folder in which a launch is started."""
DATA_FILE = "report.json"
FURTHER_WORLDS = (1, 2, 4)
"""Multiples of the ranks for which the step is forecast."""


def new_report_folder(script: str, name: str | None) -> Path:
    """Make the folder of a report: ``name``, which must be new, or the script's name with a number.

    Raises `InvalidArgument` if the name is taken or no name of a folder, or the folder cannot be made.
    """
    if name is not None and (not name or name in (".", "..") or "/" in name):
        raise InvalidArgument("report-name", name, "the name of a new folder in runs/reports")
    try:
        if name is None:
            return new_folder(REPORTS, script)
        (REPORTS / name).mkdir(parents=True)
        return REPORTS / name
    except FileExistsError:
        if not REPORTS.is_dir():
            raise InvalidArgument("report", str(REPORTS), "a folder, but a file has its name") from None
        raise InvalidArgument("report-name", name, f"a new name: {REPORTS / str(name)} has a report already") from None
    except OSError as error:
        raise InvalidArgument("report", str(REPORTS), f"a folder that can be written ({error.strerror})") from None


@dataclass(frozen=True)
class ScriptReport:
    """Report of a script's run: what was measured, or the reason why nothing was.

    ``alone``: the run on one process, the reason why there is none, or None if none was asked for. ``failure`` says why
    the run failed.
    """

    program: str
    world: int
    run: MeasuredRun | str
    alone: MeasuredRun | str | None = None
    failure: str | None = None

    @cached_property
    def advice(self) -> tuple[list[Advice], list[str]]:
        """Cheapest changes of the script, and why the gain of others is not known."""
        return ([], []) if isinstance(self.run, str) else advise(self.run)

    @cached_property
    def inputs(self) -> tuple[MeasuredStep, AlphaBeta] | str:
        """Step and price of a message for a simulation; why there are none if the step cannot be simulated."""
        return self.run if isinstance(self.run, str) else verdicts.simulation_inputs(self.run)

    @property
    def simulated(self) -> Timeline | None:
        """Simulated step of the script's own buckets; None if it cannot be simulated."""
        if isinstance(self.inputs, str):
            return None
        step, price = self.inputs
        return simulate_buckets(step, price, *bucket_limits(step))

    @property
    def what_if(self) -> tuple[ForecastRow, ...]:
        """Forecast of the step on more ranks over the measured link; empty if it cannot be simulated."""
        if isinstance(self.inputs, str) or isinstance(self.run, str) or verdicts.not_forecast(self.run) is not None:
            return ()
        step, price = self.inputs
        return forecast(step, [self.world * more for more in FURTHER_WORLDS], [fitted_connection(self.world, price)])

    def headline(self) -> str:
        run = self.run
        if isinstance(run, str):
            return f"not measured: {run}"
        first = "; ".join(filter(None, [f"step {milliseconds(run.step)}", verdicts.throughput(run)]))
        share = None if not isinstance(self.alone, MeasuredRun) else verdicts.efficiency(run, self.alone)
        if share is not None:
            first += f"; {share:.0%} of {run.world} times one process"
        words, seconds = verdicts.largest_loss(run)
        if seconds < LEAST_GAIN * run.step:
            loss = f"no part takes more than {LEAST_GAIN:.0%} of it but computation and the optimizer"
        else:
            loss = f"largest loss of time: {words}, {milliseconds(seconds)} ({seconds / run.step:.0%} of a step)"
        lines = [first, loss]
        if run.world > 1 and not verdicts.communicates(run):
            lines.append(f"communication was not measured: {verdicts.UNSEEN}")
        advice, reasons = self.advice
        if advice:
            best, step = advice[0], milliseconds(run.step)
            after = f"{step} would be {milliseconds(run.step - best.gain)}"
            lines.append(f"advice: {best.change} – {best.gain / run.step:.0%} less time: {after}")
        elif verdicts.communicates(run) and (reason := next(iter(reasons), verdicts.not_forecast(run))) is not None:
            saved = f"{LEAST_GAIN:.0%} of a step"
            lines.append(f"no advice: no change that could be simulated saves {saved} ({reason})")
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON, in seconds and bytes."""
        data: dict[str, Any] = {"format": FORMAT, "program": self.program, "world": self.world, "failure": self.failure}
        if isinstance(self.run, str):
            return data | {"not_measured": {"run": self.run}}
        run, alone = self.run, self.alone
        data |= {
            "updates": run.total,
            "counted": len(run.updates),
            "step": run.step,
            "unit": run.unit,
            "mean": float(run.seconds.mean()),
            "rate": run.rate,
            "long_updates": {"count": int(run.long.sum()), "seconds": run.long_seconds},
            "device": run.model["name"],
            "ranks": [
                {part: float(run.parts[part][rank]) for part in ("step", *PARTS, "hidden")}
                | {"memory": run.memory[rank]}
                for rank in range(run.world)
            ],
            "slow_rank": run.slow,
            "not_measured": dict(_not_measured(self, run)),
            "advice": [each._asdict() | {"step": run.step - each.gain} for each in self.advice[0]],
        }
        if isinstance(alone, MeasuredRun):
            data |= {"alone": {"step": alone.step, "rate": alone.rate, "efficiency": verdicts.efficiency(run, alone)}}
        if not isinstance(self.inputs, str) and (simulated := self.simulated) is not None:
            data["simulated"] = {
                "step": self.inputs[0].other + simulated.duration,
                "exposed": simulated.exposed(),
                "price": asdict(self.inputs[1]),
                "rows": [asdict(row) for row in self.what_if],
            }
        return data


def _not_measured(report: ScriptReport, run: MeasuredRun) -> Iterator[tuple[str, str]]:
    for name, value in verdicts.rows(run, report.alone):
        if value.startswith("not measured: "):
            yield name, value.removeprefix("not measured: ")
    if isinstance(report.inputs, str):
        yield "simulated step", report.inputs
    elif (reason := verdicts.not_forecast(run)) is not None:
        yield "other buckets and more ranks", reason
    for each in report.advice[1]:
        change, _, reason = each.partition(": ")
        yield change, reason


def read_report(
    folder: Path,
    program: Sequence[str],
    world: int,
    *,
    baseline: Path | None = None,
    failure: str | None = None,
    link: AlphaBeta | None = None,
) -> ScriptReport:
    """Read the journals in the folder of a run, and those of ``baseline`` or of its own run on one process.

    ``failure`` says why the run failed; ``link`` is the time of an all-reduce that was measured apart from it.
    """
    beside = folder / ALONE if baseline is None else baseline
    alone = _read(beside, 1) if beside.is_dir() else None
    return ScriptReport(" ".join(program), world, _read(folder, world, link), alone, failure)


def _read(folder: Path, world: int, link: AlphaBeta | None = None) -> MeasuredRun | str:
    try:
        return read_run(folder, world, link)
    except NotMeasured as reason:
        return str(reason)


UPDATES_ALONE = 30
"""Updates after which the run on one process is stopped, at most as many as the whole run has made."""


def launch_with_report(
    spec: Launch, folder: Path, signals: list[int], say: Callable[[str], None], *, alone: bool
) -> tuple[int, ScriptReport]:
    """Launch a script with hooks, and after it on one process if ``alone``; return its status and its report.

    ``signals`` and ``say`` are those of `dpbook.runs.launch.launch`. A run that fails or is stopped is not repeated.
    """
    ended = launch(with_hooks(spec, folder, {"sampled": True}, moments=True), say, signals)
    failure = ended.messages[0].partition("\n")[0] if ended.messages and ended.status else None
    report = read_report(folder, spec.program, spec.nproc, failure=failure)
    if not alone or spec.nproc == 1 or ended.status or isinstance(report.run, str):
        return ended.status, report
    say(f"running the script again, on one process, for {plural(UPDATES_ALONE, 'update')} at most")
    (folder / ALONE).mkdir()
    one = replace(spec, nproc=1, threads=max(1, machine.cores() // spec.nproc))  # as many cores as each rank had
    options = {"updates": min(report.run.total, UPDATES_ALONE)}
    again = launch(with_hooks(one, folder / ALONE, options, moments=True), early_signals=signals)
    run_alone = _read(folder / ALONE, 1)
    if again.status:
        run_alone = f"the script failed on one process: {again.messages[0] if again.messages else again.status}"
    return ended.status, replace(report, alone=run_alone)
