"""Sandboxed answers: each runs in its own processes, which share no memory with the judge or with other answers.

What goes in is pickled by us; what comes out is JSON and the bytes of arrays, never a pickle.
"""
