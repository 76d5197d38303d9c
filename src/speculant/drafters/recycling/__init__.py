"""Token Recycling."""
