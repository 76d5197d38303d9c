"""Caches of other kinds than the pass's own: plain, replayed, sparse, and layers that rows are written to in place."""
