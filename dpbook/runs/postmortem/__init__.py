"""Diagnosis of a failed run: the rank at fault, found in the files, stacks and collective calls that the ranks left."""

from dpbook.runs.postmortem.dumps import Dumps, read_dumps
