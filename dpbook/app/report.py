"""The report of a training run: what it cost, beside what was predicted, as one HTML file that needs nothing else."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader

from dpbook import figures
from dpbook.collectives import bandwidth_lower_bound
from dpbook.core import DpbookError, files, in_words
from dpbook.overlap import Timeline, read_profiles
from dpbook.planning import ACCELERATORS
from dpbook.program import ALONE, metrics

FILE = "report.html"
WARM = 5
"""Steps at the beginning that do not count: the first ones allocate and settle the buckets."""
MAY_DIFFER = {"name", "out", "all_reduce", "steps", "lr", "warmup", "clip", "seed", "save_every", "predict", "profile"}
"""Options that leave the work of a step as it is; a process alone sums nothing."""
TEMPLATES = Environment(loader=PackageLoader("dpbook", "data"), autoescape=True, trim_blocks=True, lstrip_blocks=True)


@dataclass(frozen=True)
class Summary:
    """What the files of a run say; figures are over the steps after the first few."""

    about: dict[str, Any]
    lines: list[dict[str, Any]]
    prediction: dict[str, Any] | None

    @property
    def counted(self) -> list[dict[str, Any]]:
        """The lines that count."""
        return self.lines[WARM:] if len(self.lines) > 2 * WARM else self.lines

    @property
    def seconds(self) -> float:
        """Median step time."""
        return float(median(line["seconds"] for line in self.counted))

    @property
    def tokens_per_second(self) -> float:
        """Tokens, or images, per second over all ranks."""
        return float(self.about["tokens_per_step"]) / self.seconds

    @property
    def model_flops_utilisation(self) -> float | None:
        """MFU: operations of the model per second over the bf16 peak of all devices.

        None where no peak is known, and for a run in fp32, which does not use the units that have this peak.
        """
        peak = peak_flops(str(self.about["device"]))
        if peak is None or self.about["flops_per_token"] is None or self.about["options"]["precision"] != "bf16":
            return None
        return float(self.about["flops_per_token"]) * self.tokens_per_second / (peak * int(self.about["world"]))


DRIVER_NAMES = {
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "(NVIDIA )?A100.*": "A100 80 GB",  # of either memory, on SXM or PCIe
    "NVIDIA H100 80GB HBM3": "H100 SXM",  # not "NVIDIA H100 PCIe" or "NVL", which are slower
    "NVIDIA H200": "H200 SXM",
    "NVIDIA B200": "B200",
}
"""What drivers call the accelerators of our table, as patterns."""


def peak_flops(device: str) -> float | None:
    """The bf16 peak of a device by the name that its driver gives it; None for one that is not in our table."""
    names = [name for pattern, name in DRIVER_NAMES.items() if re.fullmatch(pattern, device)]
    return ACCELERATORS[names[0]].flops if names else None


def summarise(folder: Path) -> Summary:
    """Read a run's folder. Raises `DpbookError` where there is no run or it has no step."""
    try:
        about = json.loads((folder / metrics.DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DpbookError(f"{folder} holds no run that can be read: {error}") from None
    lines = metrics.read(folder)
    if not lines:
        raise DpbookError(f"{folder} holds no step yet")
    path = folder / metrics.PREDICTION
    return Summary(about, lines, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None)


def write(folder: Path, baseline: Path | None = None) -> Path:
    """Write ``report.html`` into the ``folder`` of a run and return its path; an older report is replaced.

    ``baseline`` is the folder of the same training on one process: with it the report gives the scaling efficiency. By
    default it is what a launch has kept for this, if it has. Raises `DpbookError`.
    """
    summary = summarise(folder)
    alone = summarise(baseline) if baseline else _kept_baseline(folder, summary)
    prediction = summary.prediction
    page = TEMPLATES.get_template(f"{FILE}.jinja").render(
        name=summary.about["options"]["name"],
        results=_results(summary, alone),
        loss=figures.run_loss(summary.lines, "The loss of the whole batch, over all ranks"),
        seconds=figures.run_seconds(
            summary.counted, "Step times on rank 0", prediction["seconds"] if prediction else None
        ),
        predicted=_predicted(summary, prediction) if prediction else None,
        traces=_traced(sorted(folder.glob("trace-rank*.json.gz"))),
        facts=_facts(summary.about),
    )
    files.write_atomically(folder / FILE, page.encode())
    return folder / FILE


def _kept_baseline(folder: Path, summary: Summary) -> Summary | None:
    """What a launch has kept of one process; None if it kept nothing, or of a step that did other work."""
    if not (folder / ALONE).exists():
        return None
    alone = summarise(folder / ALONE)
    here, there = summary.about["options"], alone.about["options"]
    return alone if all(here[name] == there.get(name) for name in here if name not in MAY_DIFFER) else None


def _results(summary: Summary, alone: Summary | None) -> Iterator[tuple[str, str]]:
    world, payload = int(summary.about["world"]), float(summary.about["payload_bytes"])
    last = summary.lines[-1]
    yield "loss", f"{last['loss']:.4f} after step {last['step']:,}"
    yield "step", f"{1e3 * summary.seconds:,.3g} ms (median of {len(summary.counted)})"
    unit = "tokens" if summary.about["flops_per_token"] else "images"
    yield "throughput", f"{summary.tokens_per_second:,.0f} {unit}/s over {world} ranks"
    if alone is not None:
        share = summary.tokens_per_second / (world * alone.tokens_per_second / int(alone.about["world"]))
        yield "one process alone", f"{alone.tokens_per_second:,.0f} {unit}/s, {1e3 * alone.seconds:,.3g} ms per step"
        yield "scaling efficiency", f"{share:.0%} of {world} times one process"
    used = summary.model_flops_utilisation
    none = "no peak known for this device and precision"
    yield "model FLOPs utilisation", none if used is None else f"{used:.1%} of the bf16 peak"
    yield "peak memory", f"{in_words(max(line['memory'] for line in summary.lines), 'B')} on rank 0"
    yield "gradients averaged", f"{in_words(payload, 'B')} per step"
    yield "sent by each rank", f"{in_words(bandwidth_lower_bound(world, payload), 'B')} per step, if by a ring"


def _predicted(summary: Summary, prediction: dict[str, Any]) -> Iterator[tuple[str, str]]:
    off = prediction["seconds"] / summary.seconds - 1
    yield "simulated step", f"{1e3 * prediction['seconds']:,.3g} ms, {off:+.0%} beside the measured one"
    yield (
        "of it exposed",
        f"{1e3 * prediction['exposed']:,.3g} of {1e3 * prediction['communication']:,.3g} ms of communication",
    )
    line = f"{in_words(prediction['alpha'], 's')} + {in_words(prediction['beta'], 's')}/B · n"
    yield "all-reduce, fitted", f"{line}, in {prediction['calls']} calls per step"


def _traced(paths: Sequence[Path]) -> dict[str, Any] | None:
    """A text and, for few ranks, a picture of the traces; None where there are none."""
    if not paths:
        return None
    try:
        timeline: Timeline = read_profiles(paths)
    except DpbookError as error:
        return {"text": f"The traces cannot be read: {error}"}
    title = (
        f"{1e3 * timeline.exposed():.3g} of {1e3 * timeline.busy('communication'):.3g} ms of communication are exposed"
    )
    picture = figures.draw_ranks(timeline, title) if len(timeline.ranks) <= 8 else None
    return {"text": repr(timeline), "picture": picture}


def _facts(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    options = about["options"]
    yield "model", f"{options['model']}, {about['parameters']:,} parameters, {about['trained']:,} trained"
    yield "strategy", f"{options['strategy']} on {about['world']} ranks over {about['backend']}"
    yield "device", f"{about['device']}, {about['cores']} cores"
    yield "versions", f"torch {about['torch']}, Python {about['python']}"
    yield "date", str(about["date"])
    yield "options", ", ".join(f"{key} {value}" for key, value in options.items())
