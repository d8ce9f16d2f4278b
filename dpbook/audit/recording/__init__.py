"""In a rank: what a training script does is written into a journal, through hooks. The script itself is not changed.

Each module watches one thing: modules, loaders, backward, updates, calls. What they write is in `dpbook.audit.journal`.
"""
