"""Chapter 08: Buckets."""

from dpbook.book.ch08.models import Model, sample, simulate
from dpbook.book.ch08.shapes import cnn, gpt, mlp
