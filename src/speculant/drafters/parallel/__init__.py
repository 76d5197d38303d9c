"""Drafters that guess several positions at once with the target itself: Jacobi decoding and Lookahead Decoding."""
