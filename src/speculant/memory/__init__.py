"""What drafters have learned, as files."""
