"""Exercise 12: where the time of a step goes, a table of scaling, and bandwidths as nccl-tests defines them."""
