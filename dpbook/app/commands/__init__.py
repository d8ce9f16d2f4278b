"""One module a command: `add` puts it into the parser, `run` carries it out, importing what it needs only then."""
