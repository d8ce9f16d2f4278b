"""Chapter 08: Buckets."""

from dpbook.book.ch08.models import Model, cnn, gpt, mlp, sample, simulate
