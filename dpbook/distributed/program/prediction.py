"""What the simulator says of a step, from this model's layers and these ranks' all-reduces, measured after training."""

from __future__ import annotations

import time
from typing import Any

from dpbook.collectives import fit
from dpbook.distributed.layers import measure_layers
from dpbook.distributed.program.batches import batches
from dpbook.distributed.program.trainer import Trainer
from dpbook.distributed.sweep import measure
from dpbook.overlap import MIB, Strategy, per_tensor_plan, plan, simulate_step, tensors_of

SIZES = tuple(2**power for power in range(14, 25, 2))
"""16 KiB to 16 MiB."""
REPEATS = 5


def predict(trainer: Trainer) -> dict[str, Any]:
    """Measure, simulate, and return the predicted step with what it was made from; every rank calls it.

    The optimizer takes one more step, so this comes after the last checkpoint. Left out: what loads the data, and the
    all-gather of a sharded optimizer.
    """
    options = trainer.options
    sweep = measure(None, SIZES, REPEATS)
    line = fit(sweep.nbytes, sweep.seconds)
    batch = next(batches(trainer.source, options, 0, trainer.rank, trainer.world))
    inputs, targets = (part.to(trainer.device) for part in batch)
    with trainer.model.no_sync():
        layers = measure_layers(trainer.module, lambda: trainer.model(inputs, targets), REPEATS)
    begun = time.perf_counter()
    trainer.optimizer.step()
    update = time.perf_counter() - begun
    tensors = tensors_of(layers)
    if options.strategy in ("naive", "hook"):
        strategy = Strategy(options.strategy, per_tensor_plan(tensors), options.strategy == "hook")
    else:
        cap = max(1, round(options.cap * MIB))
        first = None if options.strategy == "torch" else min(cap, MIB)
        strategy = Strategy("bucketed", plan(tensors, cap, first), True)
    price = line.model if trainer.world > 1 else (lambda nbytes: 0.0)
    step = simulate_step(layers, strategy, price, accumulation=options.accumulation, optimizer=update)
    return {
        "seconds": step.duration,
        "exposed": step.exposed(),
        "communication": step.busy("communication"),
        "computation": step.busy("computation"),
        "calls": strategy.plan.calls if strategy.plan else 0,
        "alpha": line.model.alpha,
        "beta": line.model.beta,
        "sweep": {"nbytes": sweep.nbytes.tolist(), "seconds": sweep.seconds.tolist()},
    }
