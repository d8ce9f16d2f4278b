"""Chapter 02: In what sense is it exact?"""

from dpbook.book.ch02.additions import draw_additions, play_additions
from dpbook.book.ch02.batch_norm import BatchNorm
from dpbook.book.ch02.bfloat import sum_in_bf16
from dpbook.book.ch02.contrastive import Contrastive, plain_gather_gradients
from dpbook.book.ch02.coupled import Coupled, synchronised_gradients
from dpbook.book.ch02.ladders import distances, error_ladder
from dpbook.replicas.inexact import bf16
