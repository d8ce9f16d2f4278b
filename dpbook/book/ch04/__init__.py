"""Chapter 04: Bigger batches."""

from dpbook.book.ch04.batches import against_batch, draw_accumulation, noise_scale_estimates, play_accumulation
from dpbook.book.ch04.noise import NoiseScale, example_gradients, noise_scale, smooth, variance_by_batch
from dpbook.book.ch04.sweep import Race, draw_races, race
