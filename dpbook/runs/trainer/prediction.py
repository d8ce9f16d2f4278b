"""Simulated step of a run, from layers and all-reduces that are measured after training."""

from typing import Any

from dpbook.collectives import fit
from dpbook.ddp import measure_layers
from dpbook.overlap import Strategy, plan, simulate_step, tensors_of
from dpbook.ranks import measure, now
from dpbook.runs.trainer.trainer import Trainer, bucket_limits

SIZES = tuple(2**power for power in range(14, 31, 2))
"""Message sizes in bytes: 16 KiB to 1 GiB."""
ALWAYS_MEASURED_BYTES = 2**24
"""Message size up to which every run is measured; on the CPU also the largest."""
REPEATS = 5


def predict(trainer: Trainer) -> dict[str, Any]:
    """Measure, simulate, and return the predicted step with its inputs. Every rank calls it.

    The optimizer takes one more step, so this comes after the last checkpoint. The prediction omits data loading and
    the all-gather of a sharded optimizer.
    """
    options = trainer.options
    sweep = measure(options.schedule(trainer.world), _sizes(trainer), REPEATS, trainer.device)
    line = fit(sweep.nbytes, sweep.seconds)
    batch = next(trainer.batches(0))
    with trainer.model.no_sync():
        layers = measure_layers(trainer.module, lambda: trainer.loss_of(batch), REPEATS)
    begun = now(trainer.device)
    trainer.optimizer.step()
    update = now(trainer.device) - begun
    buckets = plan(tensors_of(layers), *bucket_limits(options))
    strategy = Strategy(options.strategy, buckets, overlap=options.strategy != "naive")
    price = line.model if trainer.world > 1 else (lambda nbytes: 0.0)
    step = simulate_step(layers, strategy, price, accumulation=options.accumulation, optimizer=update)
    return {
        "seconds": step.duration,
        "exposed": step.exposed(),
        "communication": step.busy("communication"),
        "computation": step.busy("computation"),
        "calls": buckets.calls,
        "alpha": line.model.alpha,
        "beta": line.model.beta,
        "sweep": {"nbytes": sweep.nbytes.tolist(), "seconds": sweep.seconds.tolist()},
    }


def _sizes(trainer: Trainer) -> list[int]:
    """Return the message sizes to measure: on an accelerator up to the bytes that a step sends."""
    largest = ALWAYS_MEASURED_BYTES if trainer.device.type == "cpu" else max(ALWAYS_MEASURED_BYTES, trainer.payload)
    return [size for size in SIZES if size <= largest]
