"""Acceptance rules, one file each. A verifier depends on neither drafters nor engines."""
