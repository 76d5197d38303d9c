"""The benchmark: tasks, the order they run in, and the rows they give."""
