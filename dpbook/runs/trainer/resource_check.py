"""Check of the resources that a training run needs, before it begins and without loading torch."""

import os
import shutil
from collections.abc import Iterator, Sequence

from dpbook.core import InvalidArgument, in_words, machine
from dpbook.planning import memory_per_rank
from dpbook.replicas import TRAINING_IMAGES
from dpbook.runs.launch import PreflightFinding
from dpbook.runs.trainer.options import Options
from dpbook.runs.trainer.run_folder import KEEP, steps

PROCESS_BYTES = 400 * 2**20
"""Memory that Python with torch takes before a model exists."""


def requirements(
    options: Options, nproc: int, gpus: Sequence[machine.Gpu], *, nnodes: int = 1
) -> list[PreflightFinding]:
    """Return the problems of a run with ``options`` on ``nproc`` ranks of each of ``nnodes`` machines like this one."""
    world = nproc * nnodes
    problems = list(_memory(nproc, world, options, gpus))
    examples = world * options.batch * options.accumulation
    if options.model == "cnn" and examples > TRAINING_IMAGES:
        most = f"the {TRAINING_IMAGES:,} digits"
        problems.append(f"a global batch of {examples:,} is more than {most}: no rank could take a step")
    try:
        options.schedule(world)
    except InvalidArgument as error:
        problems.append(str(error))
    return [PreflightFinding("problem", text) for text in (*problems, *_disk(options))]


def fits(options: Options, nproc: int, *, nnodes: int = 1, gpus: Sequence[machine.Gpu]) -> bool:
    """Return True if each of these GPUs has the memory for its rank of a run with ``options``."""
    return not any(_memory(nproc, nproc * nnodes, options, gpus))


def parameters(options: Options) -> int:
    """Return the number of parameters of the model that `dpbook.runs.trainer.workloads` builds."""
    if options.model == "cnn":
        return (9 * 16 + 16) + (16 * 9 * 32 + 32) + (512 * 64 + 64) + (64 * 10 + 10)
    width = options.width
    block = 12 * width * width + 13 * width
    return (256 + options.context) * width + options.depth * block + 2 * width


def adapters(options: Options) -> int:
    """Return the number of parameters of the adapters; if there are any, only they are trained."""
    return options.lora * options.depth * 16 * options.width


def least_memory(options: Options, world: int) -> float:
    """Return the bytes that a rank needs at least: fp32 weights, gradients and moments, without activations."""
    total, trained = parameters(options) + adapters(options), adapters(options) or parameters(options)
    stage = 1 if options.strategy == "zero1" else 0
    return memory_per_rank(total, world, stage, "fp32", trainable=trained).total


def activations(options: Options) -> int:
    """Return the bytes of activations that forward saves for the backward of a micro-batch; 0 for the CNN (few).

    Attention is fused and saves no scores. With bf16 the inputs of products take two bytes, and autocast's copies of
    the weights are saved too. With recomputation the inputs of all blocks are saved, and all of one block at a time.
    """
    if options.model == "cnn":
        return 0
    width, tokens, bf16 = options.width, options.batch * options.context, options.precision == "bf16"
    norms = 16 + width // 8  # their means and deviations, and the sums of attention, per token
    block = tokens * ((36 if bf16 else 64) * width + norms + (8 if bf16 else 16) * options.lora)
    if bf16:
        block += 2 * (12 * width * width + 16 * width * options.lora)
    head = tokens * ((6 if bf16 else 8) * width + 4 * 256) + (2 * 256 * width if bf16 else 0)
    blocks = options.depth * tokens * 4 * width + block if options.checkpointing else options.depth * block
    return blocks + head


def checkpoint_bytes(options: Options) -> int:
    """Return the size of a checkpoint: fp32 weights and two moments for each trained one, in one file or in shards."""
    total, trained = parameters(options) + adapters(options), adapters(options) or parameters(options)
    return 4 * (total + 2 * trained)


def _memory(nproc: int, world: int, options: Options, gpus: Sequence[machine.Gpu]) -> Iterator[str]:
    required, activation_bytes = least_memory(options, world), activations(options)
    if gpus:
        least = min(gpus[:nproc], key=lambda gpu: gpu.memory)
        available, owner = least.memory, f"a GPU ({least.name})"
    else:
        total = machine.memory()
        if total is None:
            return
        available, owner = total // nproc - PROCESS_BYTES, f"one of {nproc} ranks on this machine"
    if required > available:
        yield f"the model needs {required / 1e9:,.1f} GB per rank, and {owner} has {max(available, 0) / 1e9:,.1f} GB"
    elif required + activation_bytes > available:
        needed = f"{required / 1e9:,.1f} GB per rank, the activations of a micro-batch {activation_bytes / 1e9:,.1f} GB"
        remedy = "a smaller --batch, or --checkpointing"
        yield f"the model needs {needed}, and {owner} has {available / 1e9:,.1f} GB: {remedy}"


def _disk(options: Options) -> Iterator[str]:
    """Check that the folder of the runs, or its nearest existing parent, is writable and has enough free space."""
    folder = options.folder
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield f"--out: cannot write to {folder}"
        return
    free = shutil.disk_usage(folder).free
    required = (KEEP + 1 - min(KEEP, len(steps(options.folder)))) * checkpoint_bytes(options)
    if required > free:
        needed = f"checkpoints need {in_words(required, 'B')}: the newest {KEEP} are kept while another is written"
        yield f"--out: the disk of {folder} has {in_words(free, 'B')} free, and {needed}"
