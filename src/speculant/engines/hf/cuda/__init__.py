"""CUDA graphs: passes recorded once and replayed."""
