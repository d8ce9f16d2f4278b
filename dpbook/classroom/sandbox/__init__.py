"""Answers in processes of their own, which share no memory with who judges them, nor with one another.

What goes in is pickled by us; what comes out is JSON and the bytes of arrays, never a pickle.
"""
