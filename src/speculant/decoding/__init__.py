"""The round: draft, verify, commit, observe."""
