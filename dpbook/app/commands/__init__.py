"""One module per command: `add` adds it to the parser; `run` executes it and imports what it needs only then."""
