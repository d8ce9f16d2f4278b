"""Chapter 02: In what sense is it exact?"""

from dpbook.book.ch02.coupled import BatchNorm, Contrastive, Coupled, plain_gather_gradients, synchronised_gradients
from dpbook.book.ch02.rounding import distances, draw_additions, error_ladder, play_additions, sum_in_bf16
from dpbook.replicas.inexact import bf16
