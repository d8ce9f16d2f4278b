"""What one chapter and its exercise need and nobody else: a folder each; in its `judge` is what marks the exercise."""
