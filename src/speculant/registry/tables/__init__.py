"""The rows of the table of methods, a file for each family."""
