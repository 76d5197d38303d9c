"""The benchmark: tasks, the runner, and the rows that it writes."""
