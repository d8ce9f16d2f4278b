"""Chapter 02: In what sense is it exact?"""

from dpbook.book.ch02.additions import draw_additions, play_additions
from dpbook.book.ch02.coupled import BatchNorm, Contrastive, Coupled, plain_gather_gradients, synchronised_gradients
from dpbook.book.ch02.ladders import distances, error_ladder, sum_in_bf16
from dpbook.replicas.inexact import bf16
