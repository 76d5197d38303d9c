"""Memory files: what drafters have learned across requests."""
