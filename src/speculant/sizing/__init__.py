"""Draft sizing: how many nodes each round drafts."""
