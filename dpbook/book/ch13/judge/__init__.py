"""Exercise 13: the stage that fits, the size of a cluster, walls predicted, and the groups of a rank."""
