"""Runs of vLLM with and without drafts, for tests and benchmarks of the integration. They need vLLM installed."""
