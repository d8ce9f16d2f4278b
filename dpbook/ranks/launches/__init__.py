"""A launch, as whoever called it sees it: what it starts, what it passes on, and what it watches from outside."""
