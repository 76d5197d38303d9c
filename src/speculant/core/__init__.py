"""Data and contracts that every other package uses; numpy only."""
