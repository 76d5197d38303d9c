"""The rows of the table of methods, one file per family."""
