"""Chapter 04: Bigger batches, and beside it 04b: The critical batch size."""

from dpbook.book.ch04.batches import (
    NoiseScale,
    against_batch,
    draw_accumulation,
    example_gradients,
    noise_scale,
    noise_scale_estimates,
    play_accumulation,
    smooth,
    variance_by_batch,
)
from dpbook.book.ch04.sweep import Branches, Race, draw_races, play_prices, race, recorded
