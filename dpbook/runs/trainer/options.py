"""Options of the training program, as a dataclass and on a command line. Loads no torch."""

# ruff: noqa: RUF009  # `option` returns the field of a dataclass
import argparse
from collections.abc import Container
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from dpbook.collectives import ALGORITHMS, Schedule, from_json, gloo_ring, verify_all_reduce
from dpbook.core import DpbookError, InvalidArgument, check_float, check_int, check_one_of, check_type

ModelName = Literal["gpt", "cnn"]
StrategyName = Literal["torch", "naive", "hook", "bucketed", "zero1"]
Precision = Literal["fp32", "bf16"]
CHOICES = {"model": get_args(ModelName), "strategy": get_args(StrategyName), "precision": get_args(Precision)}
SCHEDULES = ALGORITHMS | {"gloo_ring": gloo_ring}
PRESETS: dict[str, dict[str, Any]] = {
    "gpu": {
        "precision": "bf16", "width": 1024, "depth": 12, "context": 1024, "batch": 16, "lr": 3e-4, "steps": 200,
        "fused": True, "report_every": 10, "save_every": 0,
    },
}  # fmt: skip
"""Options by the name of a preset: "gpu" keeps a GPU busy, with 152 million parameters and 16,384 tokens per rank."""
SIZE = {"model", "precision", "width", "depth", "context", "batch", "lr", "fused"}
"""Options of the model and its micro-batches. A launch on GPUs chooses the preset "gpu" if none of them is given."""
NO_PRESET = "none"
GROUP_TIMEOUT = 600.0
"""Seconds that a collective of the program's process group may take: torch's default with NCCL, and on the CPU too."""
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def option(default: Any, text: str, *, least: float = 0) -> Any:
    """Return the field of an option with its default, its help text and its smallest value."""
    return field(default=default, metadata={"help": text, "least": least})


@dataclass(frozen=True)
class Options:
    """Options of a training run. Raises `InvalidArgument`."""

    name: str = option("run", "name of the run: a folder below --out")
    out: str = option("runs", "folder that holds the runs")
    model: ModelName = option("gpt", "a small GPT on the bytes of a text, or a CNN on handwritten digits")
    strategy: StrategyName = option(
        "bucketed", "who averages the gradients: torch's DDP, one of ours, or ours with ZeRO-1"
    )
    all_reduce: str = option(
        "torch", f"what sums gradients: torch's own, or a schedule: {', '.join(SCHEDULES)}, or FILE.json"
    )
    steps: int = option(100, "optimizer steps in all", least=1)
    batch: int = option(8, "examples per rank and micro-batch", least=1)
    accumulation: int = option(1, "micro-batches per step", least=1)
    lr: float = option(1e-3, "learning rate of AdamW after the warm-up")
    warmup: int = option(10, "steps over which the learning rate rises linearly")
    clip: float = option(1.0, "norm at which averaged gradients are clipped; 0: never")
    seed: int = option(0, "of initial weights and of the order of the data")
    width: int = option(128, "of the GPT's hidden layers; a multiple of 32", least=32)
    depth: int = option(4, "blocks of the GPT", least=1)
    context: int = option(128, "tokens in a sequence", least=2)
    precision: Precision = option("fp32", "bf16: autocast, with fp32 weights and gradients")
    lora: int = option(0, "rank of adapters on frozen linear layers; 0: none, train everything")
    checkpointing: bool = option(False, "recompute activations of the blocks in backward")
    compile: bool = option(False, "torch.compile the model, the GPT block by block")
    cap: float = option(25.0, "bucket cap in MiB")
    save_every: int = option(50, "steps between checkpoints; 0: only the last")
    predict: bool = option(True, "measure layers and all-reduces at the end, for the report")
    profile: int = option(0, "trace so many steps, after the first ten; 0: none")
    fused: bool = option(False, "AdamW in one kernel, where torch has that for the device")
    report_every: int = option(1, "steps between lines of metrics, for which the device is waited for", least=1)

    def __post_init__(self) -> None:
        for spec in fields(self):
            value, least = getattr(self, spec.name), spec.metadata["least"]
            if isinstance(spec.default, bool):
                check_type(spec.name, value, bool, "True or False")
            elif isinstance(spec.default, int):
                check_int(spec.name, value, int(least))
            elif isinstance(spec.default, float):
                check_float(spec.name, value, minimum=least)
        for name, choices in CHOICES.items():
            check_one_of(name, getattr(self, name), choices)
        if not self.name or self.name.startswith(".") or not NAME_CHARACTERS.issuperset(self.name):
            raise InvalidArgument("name", self.name, "letters, digits, '-', '_' and '.', not first a '.'")
        if self.all_reduce not in ("torch", *SCHEDULES) and not self.all_reduce.endswith(".json"):
            raise InvalidArgument("all_reduce", self.all_reduce, f"one of torch, {', '.join(SCHEDULES)}, or FILE.json")
        if self.width % 32:
            raise InvalidArgument("width", self.width, "a multiple of 32, the width of an attention head")
        if self.lora and self.model != "gpt":
            raise InvalidArgument("lora", self.lora, "0 for the cnn: adapters are for the gpt's linear layers")

    @property
    def folder(self) -> Path:
        return Path(self.out) / self.name

    def schedule(self, world: int) -> Schedule | None:
        """Return the verified all-reduce for ``world`` ranks; None for torch's own. Raises `InvalidArgument`."""
        if self.all_reduce == "torch":
            return None
        if self.all_reduce in SCHEDULES:
            return SCHEDULES[self.all_reduce](world)
        try:
            schedule = from_json(Path(self.all_reduce).read_text(encoding="utf-8"))
            verify_all_reduce(schedule, world)
        except (OSError, ValueError, DpbookError) as error:
            raise InvalidArgument("all_reduce", self.all_reduce, f"a file with such a schedule ({error})") from None
        if schedule.bounds.size is not None:
            raise InvalidArgument("all_reduce", self.all_reduce, "a schedule that cuts buffers of any size")
        return schedule

    def to_arguments(self, names: Container[str] | None = None) -> list[str]:
        """Return the command line of these options, or of those with some ``names``."""
        arguments = []
        for name, value in asdict(self).items():
            if names is None or name in names:
                flag = name.replace("_", "-")
                is_flag = isinstance(value, bool)
                arguments += [f"--{flag}" if value else f"--no-{flag}"] if is_flag else [f"--{flag}", str(value)]
        return arguments


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add a command-line option for every field, and one for presets."""
    presets = (f"{name}: {' '.join(Options(**values).to_arguments(values))}" for name, values in PRESETS.items())
    parser.add_argument(
        "--preset", choices=[*PRESETS, NO_PRESET],
        help="options that others here overrule; `dpbook launch` chooses gpu where there are GPUs, unless it is given "
        f"--preset or any of {', '.join('--' + name for name in sorted(SIZE))}; {'; '.join(presets)}",
    )  # fmt: skip
    for spec in fields(Options):
        flag, text = "--" + spec.name.replace("_", "-"), f"{spec.metadata['help']} (default: {spec.default})"
        if isinstance(spec.default, bool):
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=spec.metadata["help"]
            )
        else:
            parser.add_argument(
                flag, type=type(spec.default), default=argparse.SUPPRESS, help=text, choices=CHOICES.get(spec.name),
                metavar=None if spec.name in CHOICES else type(spec.default).__name__.upper(),
            )  # fmt: skip


def leaves_size_open(parsed: argparse.Namespace) -> bool:
    """Return True if a parsed command line has neither a preset nor an option of `SIZE`."""
    return parsed.preset is None and not any(hasattr(parsed, name) for name in SIZE)


def from_namespace(parsed: argparse.Namespace) -> Options:
    """Return the options of a parsed command line; they override its preset, which overrides the defaults."""
    given = {spec.name: getattr(parsed, spec.name) for spec in fields(Options) if hasattr(parsed, spec.name)}
    return Options(**{**PRESETS.get(parsed.preset, {}), **given})
