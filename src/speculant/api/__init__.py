"""The public interface: models with drafters, results, batches."""
