"""In a rank: the moments of a training script's updates, through hooks. The script itself is not changed.

What is written goes into the journal of `dpbook.audit`, in two kinds of events, which `dpbook.forecast.medians` reads.
"""
