"""Data types and interfaces that every other package uses; depends on numpy only."""
