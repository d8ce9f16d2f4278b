"""Which rank is at fault: what the ranks left behind, compared and put into one sentence."""
