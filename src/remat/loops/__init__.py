"""What the loops of every framework share: the request, one call with its two sweeps, the step and its outputs."""
