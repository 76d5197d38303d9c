"""Acceptance rules, one file each. A verifier knows neither drafters nor engines."""
