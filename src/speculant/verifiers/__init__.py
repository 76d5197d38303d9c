"""The accept rules, one file each. A verifier knows neither drafters nor targets."""
