"""How many nodes a round spends."""
