"""Everything that proposes tokens. Memory drafters use ints, numpy and numba only, so they run in any engine."""
